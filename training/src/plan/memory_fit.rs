//! Whether a run fits in memory, and the largest micro-batch that does.

use anyhow::{Result, bail};
use burn::tensor::Device;
use hearth_model::{config::GptConfig, ops, system::memory};

use crate::{
    config::{MicroBatchSize, TrainConfig},
    plan::estimate::Estimate,
};

/// The share of the available memory that `auto` uses: predictions are off by up to 15 %.
const USED: f64 = 0.85;

/// The memory limits of a device, in bytes; `None` if the system does not report them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Memory that could be taken.
    pub available: Option<u64>,
    /// The largest tensor.
    pub largest_tensor: Option<u64>,
}

impl Limits {
    /// The limits of `device`. CPU: the memory that the machine or the container has left; GPU: only the largest tensor is known.
    pub fn of(device: &Device) -> Limits {
        match ops::device_memory(device) {
            None => Limits { available: memory::available_bytes(), largest_tensor: None },
            Some(memory) => Limits { available: None, largest_tensor: Some(memory.largest_tensor) },
        }
    }

    /// The limits for one of `n_processes` that share the memory equally.
    #[must_use]
    pub fn shared_by(self, n_processes: usize) -> Limits {
        Limits { available: self.available.map(|available| available / n_processes.max(1) as u64), ..self }
    }

    /// Whether a run of this size fits in `share` of the memory.
    fn fits(self, estimate: &Estimate, share: f64) -> bool {
        self.available.is_none_or(|available| estimate.peak_bytes as f64 <= available as f64 * share)
            && self.largest_tensor.is_none_or(|largest| estimate.largest_tensor_bytes <= largest)
    }

    /// Rejects a run that cannot fit; the message has the memory needed and available, and the settings to lower.
    ///
    /// # Errors
    /// It does not fit.
    pub fn require(self, config: &TrainConfig, gpt: &GptConfig, device: &Device) -> Result<()> {
        let estimate = Estimate::new(config, gpt, device)?;
        if self.fits(&estimate, 1.0) {
            return Ok(());
        }
        let megabytes = |bytes: u64| format!("{:.0} MB", bytes as f64 / 1e6);
        let what = match (self.available, self.largest_tensor) {
            (Some(available), _) if estimate.peak_bytes > available => {
                format!("{} of memory, and {} are available", megabytes(estimate.peak_bytes), megabytes(available))
            }
            (_, largest) => format!(
                "a tensor of {}, and the device takes tensors of up to {}",
                megabytes(estimate.largest_tensor_bytes),
                megabytes(largest.unwrap_or_default())
            ),
        };
        let rows = config.data.micro_batch_size.rows();
        // More rows take more memory: binary search for the largest number that fits.
        let (mut fitting, mut too_many) = (0, rows);
        while fitting + 1 < too_many {
            let middle = fitting.midpoint(too_many);
            match self.fits(&estimate_of(config, gpt, device, middle)?, USED) {
                true => fitting = middle,
                false => too_many = middle,
            }
        }
        // The largest number up to that which divides the step.
        let n_rows = config.tokens_per_step() / config.model.max_seq_len.max(1);
        let smaller = (1..=fitting).rev().find(|rows| n_rows.is_multiple_of(*rows));
        let hint = match smaller {
            Some(rows) => format!(
                "`data.micro_batch_size={rows}` fits; with `data.tokens_per_step={}` a step keeps its size",
                config.tokens_per_step()
            ),
            None => "not even one row of the micro-batch fits: lower `model.max_seq_len`, `model.d_model` or \
                     `model.n_layers`"
                .to_owned(),
        };
        bail!("training with `data.micro_batch_size={rows}` would take about {what}\nhint: {hint}")
    }

    /// The largest micro-batch that divides a step and fits.
    ///
    /// # Errors
    /// Not even one row fits.
    pub fn largest(self, config: &TrainConfig, gpt: &GptConfig, device: &Device) -> Result<usize> {
        let n_rows = config.tokens_per_step() / config.model.max_seq_len.max(1);
        for rows in (1..=n_rows).rev().filter(|rows| n_rows.is_multiple_of(*rows)) {
            if self.fits(&estimate_of(config, gpt, device, rows)?, USED) {
                return Ok(rows);
            }
        }
        // One row may still fit without the reserve.
        self.require(&with_rows(config, 1), gpt, device).map(|()| 1)
    }
}

fn with_rows(config: &TrainConfig, rows: usize) -> TrainConfig {
    let mut config = config.clone();
    config.data.micro_batch_size = MicroBatchSize::Rows(rows);
    config
}

fn estimate_of(config: &TrainConfig, gpt: &GptConfig, device: &Device, rows: usize) -> Result<Estimate> {
    Estimate::new(&with_rows(config, rows), gpt, device)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::config::Layers;

    fn config(sets: &[&str]) -> (TrainConfig, GptConfig) {
        let sets = sets.iter().map(|set| (*set).to_owned()).collect();
        let config = Layers { preset: Some("shakespeare-char-cpu".to_owned()), sets, ..Layers::default() };
        let config = config.resolve().unwrap();
        config.validate().unwrap();
        let gpt = config.gpt_config(65).unwrap();
        (config, gpt)
    }

    #[test]
    fn run_beyond_available_memory_is_rejected_with_a_micro_batch_that_fits() {
        let device = Device::flex();
        let (config, gpt) = config(&["data.micro_batch_size=48"]);
        let needed = Estimate::new(&config, &gpt, &device).unwrap().peak_bytes;
        let limits = |available: u64| Limits { available: Some(available), largest_tensor: None };
        limits(needed).require(&config, &gpt, &device).unwrap();
        let error = limits(needed / 2).require(&config, &gpt, &device).unwrap_err().to_string();
        assert!(error.contains("`data.micro_batch_size=48`") && error.contains("are available"), "{error}");
        let rows: usize =
            error.split("hint: `data.micro_batch_size=").nth(1).unwrap().split('`').next().unwrap().parse().unwrap();
        assert!((1..48).contains(&rows), "{error}");
        assert!(Estimate::new(&with_rows(&config, rows), &gpt, &device).unwrap().peak_bytes <= needed / 2);
        let error = limits(1000).require(&config, &gpt, &device).unwrap_err().to_string();
        assert!(error.contains("not even one row"), "{error}");
        let tensors = Limits { available: None, largest_tensor: Some(1000) };
        let error = tensors.require(&config, &gpt, &device).unwrap_err().to_string();
        assert!(error.contains("tensors of up to"), "{error}");
        Limits::default().require(&config, &gpt, &device).unwrap();
    }

    #[test]
    fn largest_micro_batch_divides_the_step_and_fits_in_memory() {
        let device = Device::flex();
        let (config, gpt) = config(&["data.micro_batch_size=auto", "data.tokens_per_step=3072"]);
        let largest =
            |available: Option<u64>| Limits { available, largest_tensor: None }.largest(&config, &gpt, &device);
        // 48 rows of 64 tokens.
        assert_eq!(largest(None).unwrap(), 48);
        let of = |rows: usize| estimate_of(&config, &gpt, &device, rows).unwrap().peak_bytes;
        assert_eq!(largest(Some((of(17) as f64 / USED) as u64)).unwrap(), 16);
        assert_eq!(largest(Some(of(1))).unwrap(), 1, "without the reserve");
        assert!(largest(Some(of(1) - 1)).is_err());
    }
}
