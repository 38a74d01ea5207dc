//! Changes of a fresh model's weights that the settings ask for.

use burn::{
    module::{Module, ModuleMapper, Param},
    tensor::Tensor,
};
use hearth_model::gpt::{Gpt, ParamPath, ROUTED};

use crate::config::ModelSettings;

/// The standard deviation that [`Gpt::init`] gives embeddings.
const EMBEDDING_STD: f64 = 0.02;

/// The matrices that write to the residual stream, and an untied `lm_head`.
const OUTPUTS: [&str; 5] =
    ["attn.out.weight", "cross.out.weight", "recurrent.out.weight", "mlp.down.weight", "lm_head.weight"];

/// Applies `zero_init_outputs`, with which each block starts as the identity, and `embedding_std` to a fresh model.
pub(crate) fn initialize(gpt: Gpt, settings: &ModelSettings) -> Gpt {
    let embeddings = settings.embedding_std.map_or(1.0, |std| std / EMBEDDING_STD);
    let outputs = if settings.zero_init_outputs { 0.0 } else { 1.0 };
    gpt.map(&mut Scaling { path: ParamPath::default(), embeddings, outputs })
}

/// Multiplies weights by factors.
struct Scaling {
    path: ParamPath,
    embeddings: f64,
    outputs: f64,
}

impl ModuleMapper for Scaling {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let path = self.path.path();
        let factor = match path.as_str() {
            "embed.weight" => self.embeddings,
            path if OUTPUTS.iter().any(|end| path.ends_with(end)) => self.outputs,
            path if path.contains(ROUTED) && path.ends_with(".down.weight") => self.outputs,
            _ => 1.0,
        };
        if factor == 1.0 {
            return param;
        }
        param.map(|value| Tensor::from_inner(value.inner().mul_scalar(factor)).require_grad())
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use burn::tensor::{Device, TensorData};

    use super::*;
    use crate::config::TrainConfig;

    /// The standard deviation of every parameter that is no norm, by its path.
    fn deviations(settings: ModelSettings) -> Vec<(String, f64)> {
        let config = TrainConfig { model: settings, ..TrainConfig::default() };
        let gpt = Gpt::init(&config.gpt_config(500).unwrap(), 1, &Device::flex().autodiff()).unwrap();
        let mut found = Vec::new();
        let add = &mut |path: &str, data: TensorData| {
            let values = data.try_to_vec::<f32>().unwrap();
            let squares: f64 = values.iter().map(|value| f64::from(value * value)).sum();
            found.push((path.to_owned(), (squares / values.len() as f64).sqrt()));
            Ok(())
        };
        initialize(gpt, &config.model).read_params(add).unwrap();
        found.retain(|(path, _)| path.ends_with(".weight") && !path.contains("norm"));
        found
    }

    #[test]
    fn init_settings_change_only_the_embedding_and_output_weights() {
        let plain = || ModelSettings { tie_embeddings: Some(false), ..ModelSettings::default() };
        let changed = ModelSettings { zero_init_outputs: true, embedding_std: Some(0.1), ..plain() };
        for ((path, before), (_, after)) in deviations(plain()).into_iter().zip(deviations(changed)) {
            match path.as_str() {
                "embed.weight" => assert!((before - 0.02).abs() < 5e-4 && (after - 0.1).abs() < 2e-3, "{after}"),
                path if OUTPUTS.iter().any(|end| path.ends_with(end)) => {
                    assert!(before > 0.0 && after == 0.0, "{path}")
                }
                _ => assert_eq!(before, after, "{path}"),
            }
        }
    }
}
