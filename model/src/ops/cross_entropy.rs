//! The training loss, from hidden states.

use std::{cell::RefCell, ops::Range};

use burn::tensor::{Bool, DType, Int, Tensor, activation::log_softmax};

use super::{
    LossOptions, Placement, Precision, Weight, cpu, cube, linear,
    linear::frozen_bias,
    read, records_gradients, soft_cap, to_f32,
    training::{apply, apply_on_gpu},
    weight::WeightForm,
};
use crate::error::Result;

/// The loss to minimise and the loss to report, `[1]` each.
#[derive(Clone, Debug)]
pub struct Losses {
    /// The cross entropy in nats, smoothed if that was asked for, plus the z-loss. Training follows its gradients.
    pub objective: Tensor<1>,
    /// The cross entropy alone, without gradients.
    pub cross_entropy: Tensor<1>,
}

/// The tokens to predict, and the weight of each row in the loss.
#[derive(Clone, Debug)]
pub struct Targets {
    /// The token to predict from each row, `[n_rows]`.
    pub ids: Tensor<1, Int>,
    /// Weight of each row, `[n_rows]`: the loss is the weighted sum of the rows' losses, and rows of weight 0 are
    /// skipped. Without weights, the loss is the mean over all rows.
    pub weights: Option<Vec<f32>>,
}

/// `-ln p(target)` in nats, where `p = softmax(hidden W^T + b)`, as a mean over the rows or a weighted sum ([`Targets`]):
/// hidden `[n_rows, d_model]`, weight `[vocab_size, d_model]`, bias `[vocab_size]`.
///
/// It takes hidden states and not logits, so that the body for training never holds the logits of a batch at once.
///
/// # Panics
/// When the number of weights is not the number of rows.
pub(crate) fn linear_cross_entropy(
    hidden: Tensor<2>,
    (weight, bias): (&Weight, Option<Tensor<1>>),
    options: LossOptions,
    targets: Targets,
) -> Losses {
    let precision = weight.precision();
    let on_cpu =
        |targets: Targets| cpu::LinearCrossEntropy::new(cpu::ints(targets.ids), targets.weights, options, precision);
    let on_gpu = |targets: Targets| {
        cube::training::LinearCrossEntropy::new((targets.ids, targets.weights), options, precision, &hidden)
    };
    let both = match (weight.form(), Placement::of(&hidden.device())) {
        (WeightForm::Packed(panels), Placement::Cpu) => {
            let (hidden, bias) = (cpu::values(hidden), bias.map(cpu::values));
            let bias = bias.as_ref().map(|bias| bias.as_slice());
            cpu::tensor(on_cpu(targets).of_packed(hidden.as_slice(), panels, bias).to_vec(), [2])
        }
        (WeightForm::Packed(panels), _) => {
            let frozen = Some((panels.clone(), frozen_bias(bias)));
            apply(vec![hidden.into()], cpu::LinearCrossEntropy { frozen, ..on_cpu(targets) })
        }
        (WeightForm::Stored(matrix), Placement::Cpu | Placement::CpuTraining) if matrix.dtype() == DType::F32 => {
            let op = on_cpu(targets);
            let operands = [hidden.into(), matrix.into()].into_iter().chain(bias.map(Into::into));
            apply(operands.collect(), op)
        }
        // The GPU's bodies do not smooth.
        (WeightForm::Stored(matrix), Placement::GpuTraining)
            if matrix.dtype() == DType::F32 && options.label_smoothing == 0.0 =>
        {
            let op = on_gpu(targets);
            let operands = [hidden.into(), matrix.into()].into_iter().chain(bias.map(Into::into));
            apply_on_gpu(operands.collect(), op)
        }
        (WeightForm::OnGpu(_), Placement::Gpu) if options.label_smoothing == 0.0 => {
            let ([_, d_model], [vocab_size, _]) = (hidden.dims(), weight.dims());
            let logits = |rows| linear(hidden.clone().slice([rows, 0..d_model]), weight, None);
            on_gpu(targets).of_logits(vocab_size, bias, logits)
        }
        _ => return linear_cross_entropy_reference(hidden, (weight, bias), options, targets),
    };
    Losses::of(both)
}

/// The cross entropy of each row in nats, without gradients: hidden `[n_rows, d_model]`, targets `[n_rows]`, and
/// weights if rows do not all count. Rows of weight 0 have the loss 0.
///
/// # Errors
/// [`Error::Execution`](crate::error::Error::Execution) if the device cannot be read.
pub(crate) fn token_losses(
    hidden: Tensor<2>,
    (weight, bias): (&Weight, Option<Tensor<1>>),
    softcap: Option<f64>,
    (targets, weights): (Vec<i32>, Option<Vec<f32>>),
) -> Result<Vec<f32>> {
    let ([n_rows, d_model], [vocab_size, _]) = (hidden.dims(), weight.dims());
    assert_eq!(targets.len(), n_rows, "targets, one for each row");
    let options = LossOptions { softcap, ..LossOptions::default() };
    let op = cpu::LinearCrossEntropy::new(targets, weights, options, Precision::F32);
    let counted = op.counted_rows();
    let hidden = match &counted {
        None => hidden,
        Some(counted) if counted.is_empty() => return Ok(vec![0.0; n_rows]),
        Some(counted) => {
            let counted: Vec<i32> = counted.iter().map(|&row| row as i32).collect();
            let counted = Tensor::from_data(counted.as_slice(), &hidden.device());
            hidden.select(0, counted)
        }
    };
    let failed = RefCell::new(None);
    let logits = |rows: Range<usize>| {
        let n = rows.len() * vocab_size;
        let read_back = |logits| read(logits).and_then(to_f32);
        read_back(linear(hidden.clone().slice([rows, 0..d_model]), weight, bias.clone())).unwrap_or_else(|error| {
            *failed.borrow_mut() = Some(error);
            vec![0.0; n]
        })
    };
    let of_counted = op.cross_entropies(vocab_size, counted.as_deref(), logits);
    if let Some(error) = failed.into_inner() {
        return Err(error);
    }
    let mut losses = vec![0.0; n_rows];
    for (n, &loss) in of_counted.iter().enumerate() {
        losses[counted.as_ref().map_or(n, |counted| counted[n])] = loss;
    }
    Ok(losses)
}

/// [`linear_cross_entropy`] in plain Burn operations, but for [`linear`].
pub(crate) fn linear_cross_entropy_reference(
    hidden: Tensor<2>,
    (weight, bias): (&Weight, Option<Tensor<1>>),
    LossOptions { softcap, z_loss, label_smoothing }: LossOptions,
    targets: Targets,
) -> Losses {
    let n_rows = hidden.dims()[0];
    let logits = linear(hidden, weight, bias);
    let logits = match softcap {
        Some(cap) => soft_cap(logits, cap),
        None => logits,
    };
    let log_probs = log_softmax(logits.clone(), 1);
    let of_targets = log_probs.clone().gather(1, targets.ids.clone().unsqueeze_dim(1));
    let cross_entropy = targets.reduce(of_targets.reshape([n_rows])).neg();
    let reported = without_gradient(cross_entropy.clone());
    let cross_entropy = match label_smoothing {
        0.0 => cross_entropy,
        share => {
            let of_all = targets.reduce(log_probs.clone().mean_dim(1).reshape([n_rows])).neg();
            cross_entropy.mul_scalar(1.0 - share) + of_all.mul_scalar(share)
        }
    };
    if z_loss == 0.0 {
        return Losses { objective: cross_entropy, cross_entropy: reported };
    }
    // The logarithm of the softmax's denominator is a logit minus its log-probability.
    let log_z = logits.narrow(1, 0, 1) - log_probs.narrow(1, 0, 1);
    let z_term = targets.reduce(log_z.reshape([n_rows]).square()).mul_scalar(z_loss);
    Losses { objective: cross_entropy + z_term, cross_entropy: reported }
}

fn without_gradient(tensor: Tensor<1>) -> Tensor<1> {
    if records_gradients(&tensor.device()) { tensor.inner() } else { tensor }
}

impl Losses {
    /// Splits the output of a body, `[2]`: the loss to minimise, then the cross entropy.
    fn of(both: Tensor<1>) -> Losses {
        Losses { objective: both.clone().slice(0..1), cross_entropy: without_gradient(both.slice(1..2)) }
    }
}

impl From<Tensor<1, Int>> for Targets {
    fn from(ids: Tensor<1, Int>) -> Targets {
        Targets { ids, weights: None }
    }
}

impl Targets {
    /// The mean of `values [n_rows]`, or their sum by the weights: `[1]`. A value of weight 0 may be NaN.
    fn reduce(&self, values: Tensor<1>) -> Tensor<1> {
        let Some(weights) = &self.weights else { return values.mean() };
        let device = values.device();
        let ignored: Vec<bool> = weights.iter().map(|&weight| weight == 0.0).collect();
        let ignored = Tensor::<1, Bool>::from_data(ignored.as_slice(), &device);
        (values.mask_fill(ignored, 0.0) * Tensor::from_data(weights.as_slice(), &device)).sum()
    }
}
