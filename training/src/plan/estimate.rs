//! An estimate of a run's parameters, arithmetic and memory.

mod account;
mod cpu;
mod gpu;
mod shape;

use anyhow::Result;
use burn::tensor::Device;
use hearth_model::{
    config::GptConfig,
    gpt::{ROUTED, param_specs},
    ops,
};

use crate::{
    config::{Algorithm, TrainConfig},
    run::{
        adapter::{self, frozen_bytes},
        learner::LossGradients,
        optim::matrices_of,
        tree_sum::TreeSum,
    },
};

/// The resources that a run needs. Values are f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Estimate {
    /// Parameters that train.
    pub n_params: usize,
    /// Parameters used per token, in a mixture of experts that is trained as a whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_active_params: Option<usize>,
    /// Floating-point operations per token, forward and backward, with attention over half the context.
    pub flops_per_token: u64,
    /// Micro-batches per step.
    pub micro_steps: usize,
    /// Maximum number of partial sums of gradients that exist at the same time.
    pub n_partial_sums: usize,
    /// The weights.
    pub weight_bytes: u64,
    /// The optimizer's state.
    pub moment_bytes: u64,
    /// Gradients: the partial sums.
    pub gradient_bytes: u64,
    /// Everything else at the moment of the peak: activations that the forward pass over one micro-batch keeps,
    /// temporary values of the backward pass, and on the CPU memory of the process other than tensors; minus gradients
    /// that do not exist yet.
    pub activation_bytes: u64,
    /// The largest tensor.
    pub largest_tensor_bytes: u64,
    /// Peak memory on the device: the sum of these, without memory that the process used before.
    pub peak_bytes: u64,
}

/// Properties of a run, besides the model and the micro-batch, that affect its memory.
struct Run {
    n_partial_sums: usize,
    n_moments: usize,
    /// Values of the largest matrix that Muon updates.
    largest_muon: usize,
    /// Whether blocks are recomputed in the backward pass.
    recomputes: bool,
    /// Whether predictions are compared with the model's without its adapter.
    keeps: bool,
}

/// An adapter that trains instead of its model.
#[derive(Clone, Copy, Debug)]
struct AdapterSize {
    /// Number of its values.
    n_values: usize,
    rank: usize,
    /// The model, as it is held.
    frozen_bytes: u64,
}

/// The matrices of a block.
const MATRICES: [&str; 4] = ["attn.qkv", "attn.out", "mlp.up", "mlp.down"];

impl AdapterSize {
    /// Number of its values for one matrix, if they are spread evenly over the blocks' matrices.
    fn of_matrix(self, gpt: &GptConfig) -> usize {
        self.n_values / (MATRICES.len() * gpt.n_layers).max(1)
    }
}

/// Memory that training on the CPU takes besides tensors, measured (docs/lab/training.md): pages of the program's code;
/// buffers of each thread for the packed operands of products; and fragmentation, free memory that later requests do
/// not fit into, as a share of the tensors.
const CODE_BYTES: u64 = 12_000_000;
const PACKING_BYTES: u64 = 2_500_000;
const UNUSABLE: f64 = 0.02;

impl Estimate {
    /// The estimate for a run with `config` and a model of `gpt` on `device`.
    ///
    /// # Errors
    /// The model does not have the adapter's targets, or the files of the adapter's model cannot be read.
    pub fn new(config: &TrainConfig, gpt: &GptConfig, device: &Device) -> Result<Estimate> {
        // A prediction head is one more layer, a matrix before it, and one more product with the output matrix.
        let has_head = config.objective.mtp > 0.0;
        let deeper = has_head.then(|| GptConfig { n_layers: gpt.n_layers + 1, ..gpt.clone() });
        let gpt = deeper.as_ref().unwrap_or(gpt);
        let (of_join, of_output) =
            if has_head { (2 * gpt.d_model * gpt.d_model, gpt.vocab_size * gpt.d_model) } else { (0, 0) };
        let specs = param_specs(gpt);
        let size = |shape: &[usize]| shape.iter().product::<usize>();
        let is_cpu = *device == Device::flex();
        let adapter = match (&config.lora, &config.model.init) {
            (Some(lora), Some(base)) => {
                let class = adapter::class_of(base, config.objective.objective().trains_vectors());
                let n_values = lora.n_values(gpt, class.ok())?;
                let frozen_bytes = if is_cpu { frozen_bytes(base, gpt, lora)? } else { 4 * gpt.n_params() as u64 };
                Some(AdapterSize { n_values, rank: lora.r, frozen_bytes })
            }
            _ => None,
        };
        let n_params = adapter.map_or(gpt.n_params() + of_join, |adapter| adapter.n_values);
        let muon = if config.optim.matrices == Algorithm::Muon { matrices_of(gpt) } else { Default::default() };
        let is_muon = |path: &str| muon.contains_key(path);
        let n_moments: usize = match adapter {
            Some(adapter) => 2 * adapter.n_values,
            None => {
                let of_model = specs.iter().map(|spec| size(&spec.shape) * if is_muon(&spec.path) { 1 } else { 2 });
                of_model.sum::<usize>() + 2 * of_join
            }
        };
        // Each replica has its own weights, gradients and moments; one more copy of the weights, and the outer
        // momentum, are shared.
        let (n_moments, of_replicas) = match config.parallel.replicas {
            1 => (n_moments, 0),
            replicas => (replicas * n_moments + n_params, 2 * replicas * n_params),
        };
        let largest_muon = specs.iter().filter(|spec| is_muon(&spec.path)).map(|spec| size(&spec.shape)).max();
        // Each matrix multiplies every token, except embeddings, whose rows are looked up; a tied embedding multiplies
        // once.
        let is_table = |path: &str| {
            ["pos_embed.weight", "per_layer.embed.weight"].contains(&path)
                || path == "embed.weight" && !gpt.tie_embeddings
        };
        let matrices = || specs.iter().filter(|spec| spec.shape.len() == 2 && !is_table(&spec.path));
        let n_products = matrices().map(|spec| size(&spec.shape)).sum::<usize>() + of_join + of_output;
        let of_routed: usize = matrices().filter(|spec| spec.path.contains(ROUTED)).map(|spec| size(&spec.shape)).sum();
        // A token goes through a few of the experts, which are all alike.
        let n_products = n_products
            - gpt.experts.as_ref().map_or(0, |experts| of_routed - of_routed / experts.n_experts * experts.n_active);
        let seq_len = config.model.max_seq_len;
        let attention = 2 * gpt.n_layers * gpt.q_width() * seq_len.div_ceil(2);
        let micro_steps = config.micro_steps();
        let n_partial_sums = TreeSum::<LossGradients>::most_at_once(micro_steps);
        let bytes = |n_values: usize| 4 * n_values as u64;
        let largest_muon = largest_muon.filter(|_| adapter.is_none()).unwrap_or(0);
        let recomputes = config.optim.recompute;
        let objective = config.objective.objective();
        let keeps = objective.compares_with_base();
        let run = Run { n_partial_sums, n_moments, largest_muon, recomputes, keeps };
        let n_rows = objective.rows().rows_per_item() * config.micro_batch_tokens();
        // Memory of the head's loss: rows of both of its inputs, joined and normalized, and the gradient of the output
        // matrix.
        let of_head = if has_head { 4 * of_join + of_output + 6 * n_rows * gpt.d_model } else { 0 };
        let peak_bytes = if is_cpu {
            let n_values = cpu::peak(gpt, (n_rows, seq_len), adapter, &run) + of_head + of_replicas;
            let n_threads = ops::n_threads() as u64;
            let beside = CODE_BYTES + PACKING_BYTES * n_threads + adapter.map_or(0, |adapter| adapter.frozen_bytes);
            (bytes(n_values) as f64 * (1.0 + UNUSABLE)) as u64 + beside
        } else {
            bytes(gpu::peak(gpt, (n_rows, seq_len), adapter, &run) + of_head + of_replicas)
        };
        let weight_bytes = bytes(n_params) + adapter.map_or(0, |adapter| adapter.frozen_bytes);
        let held = weight_bytes + bytes(n_moments + n_params * n_partial_sums);
        let is_whole_mixture = gpt.experts.is_some() && adapter.is_none();
        Ok(Estimate {
            n_params,
            n_active_params: is_whole_mixture.then(|| gpt.n_active_params()),
            // Two operations per product in the forward pass; in the backward pass twice as many, or the same number if
            // the matrices do not train.
            flops_per_token: if adapter.is_some() { 4 } else { 6 } * (n_products + attention) as u64,
            micro_steps,
            n_partial_sums,
            weight_bytes,
            moment_bytes: bytes(n_moments),
            gradient_bytes: bytes(n_params * n_partial_sums),
            activation_bytes: peak_bytes.saturating_sub(held),
            largest_tensor_bytes: bytes(gpu::largest_tensor(gpt, n_rows, seq_len, !is_cpu && keeps)),
            peak_bytes,
        })
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::config::Layers;

    #[test]
    fn estimate_of_gpt2_124m_has_the_known_parameter_and_flop_counts() {
        let config = Layers { preset: Some("gpt2-124m".to_owned()), ..Layers::default() }.resolve().unwrap();
        let estimate = Estimate::new(&config, &config.gpt_config(50257).unwrap(), &Device::flex()).unwrap();
        assert_eq!(estimate.n_params, 124_439_808);
        // 6 FLOPs per parameter of a matrix (no positions, no vectors), and attention over half the context:
        // 6 * 12 layers * 768 * 1024.
        let n_products = 124_439_808 - 1024 * 768 - 121_344;
        assert_eq!(estimate.flops_per_token, 6 * (n_products + 12 * 768 * 1024));
        assert_eq!((estimate.micro_steps, estimate.n_partial_sums), (40, 6));
        assert_eq!(estimate.moment_bytes, 2 * estimate.weight_bytes);
        assert_eq!(estimate.n_active_params, None);
    }

    #[test]
    fn estimate_of_a_mixture_counts_the_experts_of_a_token_and_its_dense_model_uses_as_many_parameters() {
        let of = |sets: &[&str]| {
            let sets = sets.iter().map(|set| (*set).to_owned()).collect();
            let layers = Layers { preset: Some("mixture".to_owned()), sets, ..Layers::default() };
            let config = layers.resolve().unwrap();
            let gpt = config.gpt_config(65).unwrap();
            (Estimate::new(&config, &gpt, &Device::flex()).unwrap(), gpt)
        };
        let (mixture, gpt) = of(&[]);
        let (dense, _) = of(&["model.n_experts=0", "optim.router_aux_loss_coef=0"]);
        // Four layers with a router of eight outputs; the experts' matrices together have as many values as the MLP's.
        let of_routers = 4 * 8 * 128;
        assert_eq!(mixture.n_active_params, Some(dense.n_params + of_routers));
        assert_eq!(mixture.flops_per_token, dense.flops_per_token + 6 * of_routers as u64);
        assert_eq!(mixture.n_params, gpt.n_params());
        assert!(mixture.n_params > 2 * dense.n_params && mixture.peak_bytes > dense.peak_bytes);
    }
}
