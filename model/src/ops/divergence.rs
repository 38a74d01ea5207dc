//! KL divergence of a model's predictions from its earlier predictions.

use burn::tensor::{Int, Tensor, activation::log_softmax};

use super::{Placement, Weight, cpu, linear, records_gradients, soft_cap, training::apply, weight::WeightForm};

/// The sum over all rows of the row's share times its Kullback-Leibler divergence `KL(q || p)` in nats, `[1]`. `q` are
/// the predictions from `former` and `p` those from `hidden`, both `[n_rows, d_model]`; `former` is a tensor without
/// autodiff. Rows with share 0 are skipped.
///
/// # Panics
/// When the number of shares is not the number of rows.
pub(crate) fn linear_divergence(
    hidden: Tensor<2>,
    former: Tensor<2>,
    (weight, bias): (&Weight, Option<Tensor<1>>),
    softcap: Option<f64>,
    shares: Vec<f32>,
) -> Tensor<1> {
    match (Placement::of(&hidden.device()), weight.form()) {
        (Placement::CpuTraining, WeightForm::Packed(panels)) => {
            let bias = bias.map(|bias| cpu::values(bias.inner()).as_slice().to_vec());
            let former = cpu::values(former).as_slice().to_vec();
            let op = cpu::LinearDivergence { output: (panels.clone(), bias), former, shares, softcap };
            apply(vec![hidden.into()], op)
        }
        _ => linear_divergence_reference(hidden, former, (weight, bias), softcap, shares),
    }
}

/// [`linear_divergence`] in plain Burn operations, but for [`linear`].
pub(crate) fn linear_divergence_reference(
    hidden: Tensor<2>,
    former: Tensor<2>,
    (weight, bias): (&Weight, Option<Tensor<1>>),
    softcap: Option<f64>,
    shares: Vec<f32>,
) -> Tensor<1> {
    let device = hidden.device();
    let counted: Vec<i32> = (0..shares.len() as i32).filter(|row| shares[*row as usize] != 0.0).collect();
    if counted.is_empty() {
        return Tensor::zeros([1], &device);
    }
    let former = if records_gradients(&device) { Tensor::from_inner(former) } else { former };
    let rows = Tensor::<1, Int>::from_data(counted.as_slice(), &device);
    let log_probs = |hidden: Tensor<2>| {
        let logits = linear(hidden.select(0, rows.clone()), weight, bias.clone());
        log_softmax(softcap.map_or(logits.clone(), |cap| soft_cap(logits, cap)), 1)
    };
    let (now, before) = (log_probs(hidden), log_probs(former).detach());
    let of_rows = (before.clone().exp() * (before - now)).sum_dim(1).reshape([counted.len()]);
    let shares: Vec<f32> = counted.iter().map(|row| shares[*row as usize]).collect();
    (of_rows * Tensor::from_data(shares.as_slice(), &device)).sum()
}
