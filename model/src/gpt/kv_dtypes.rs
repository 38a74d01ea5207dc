//! The dtype of each layer's keys and values in an 8-bit KV cache.
//!
//! An 8-bit key has one scale, set by its largest value. A bias of several hundred, as the keys of Qwen 2.5 have in
//! some dimensions, makes the scale so coarse that the rest of the key is lost. So layers with such biases use a wider
//! dtype.

use super::{Block, Gpt};
use crate::{
    config::{GptConfig, HeadSizes},
    error::Result,
    gpt::kv_cache::{KvCache, default_states},
    ops::{KvDtype, KvSource, Mixer, NormParts, Qkv, SelfAttention, Sublayer, read, to_f32},
};

/// Largest ratio between the largest bias of a key and the root mean square of the key without bias, for 8-bit numbers.
/// The largest value of a key without a bias is about as large, so the rounding is at most twice as coarse.
const LARGEST_FOR_Q8: f64 = 4.0;
/// As [`LARGEST_FOR_Q8`], for f16, which rounds the bias to 11 bits: at most as coarsely as 8 bits round a key without
/// a bias.
const LARGEST_FOR_F16: f64 = 32.0;

impl Gpt {
    /// The dtype of each layer in a KV cache of `dtype`. It differs from `dtype` only with `q8`, in layers whose keys
    /// have large biases: f16 or f32, depending on their size.
    ///
    /// # Errors
    /// [`Error::Execution`](crate::error::Error::Execution) if the device cannot be read.
    pub fn kv_dtypes(&self, dtype: KvDtype) -> Result<Vec<KvDtype>> {
        let of_layer = |(layer, block): (usize, &Block)| match dtype {
            KvDtype::Q8 => Ok(dtype_for(block.largest_key_bias(layer, &self.config)?)),
            KvDtype::F32 | KvDtype::F16 => Ok(dtype),
        };
        self.blocks.iter().enumerate().map(of_layer).collect()
    }

    /// A KV cache of `n_pages` pages for this model: of `dtype`, or of wider numbers in layers that need them
    /// ([`kv_dtypes`](Self::kv_dtypes)), with a line in the log. With recurrent layers, it has states for a few dozen sequences.
    ///
    /// # Errors
    /// As [`kv_dtypes`](Self::kv_dtypes).
    pub fn kv_cache(&self, n_pages: usize, dtype: KvDtype) -> Result<KvCache> {
        self.kv_cache_with_states(n_pages, default_states(n_pages), dtype)
    }

    /// [`kv_cache`](Self::kv_cache) with `n_states` states of the recurrent layers, if the model has such layers.
    ///
    /// # Errors
    /// As [`kv_dtypes`](Self::kv_dtypes).
    pub fn kv_cache_with_states(&self, n_pages: usize, n_states: usize, dtype: KvDtype) -> Result<KvCache> {
        let dtypes = self.kv_dtypes(dtype)?;
        let n_wider = |wider: KvDtype| dtypes.iter().filter(|&&of_layer| of_layer == wider && wider != dtype).count();
        let (n_f16, n_f32) = (n_wider(KvDtype::F16), n_wider(KvDtype::F32));
        if n_f16 + n_f32 > 0 {
            let n_layers = dtypes.len();
            tracing::warn!(
                "the keys of some layers have biases too large for `{dtype}`: of the KV cache's {n_layers} layers, {n_f16} \
                 are in `f16` and {n_f32} in `f32`"
            );
        }
        Ok(KvCache::of_layers(&self.config, [n_pages, n_states], &dtypes, &self.device()))
    }

    /// Whether some layers are recurrent, so that sequences have states.
    pub fn has_recurrent_layers(&self) -> bool {
        self.config.n_recurrent_layers() > 0
    }

    /// Bytes of a token's keys and values in a KV cache of `dtype` for this model.
    ///
    /// # Errors
    /// As [`kv_dtypes`](Self::kv_dtypes).
    pub fn kv_bytes_per_token(&self, dtype: KvDtype) -> Result<usize> {
        let dtypes = self.kv_dtypes(dtype)?;
        Ok(dtypes.iter().enumerate().map(|(layer, dtype)| dtype.bytes_in_layer(&self.config, layer)).sum())
    }
}

/// The narrowest dtype for keys whose largest bias is `ratio` times the root mean square of the rest.
fn dtype_for(ratio: f64) -> KvDtype {
    match ratio {
        ratio if ratio <= LARGEST_FOR_Q8 => KvDtype::Q8,
        ratio if ratio <= LARGEST_FOR_F16 => KvDtype::F16,
        _ => KvDtype::F32,
    }
}

impl Block {
    /// The ratio between the largest bias of a key and the root mean square of the key without it; the largest ratio of
    /// all key heads. Also counts the bias of the input norm times the matrix, and the bias of the norm of keys.
    fn largest_key_bias(&self, layer: usize, config: &GptConfig) -> Result<f64> {
        let parts = self.operands(layer, config, None, &[], None);
        let Some(Sublayer { in_norm, inner: Mixer::Attention(attention), .. }) = parts.mixer else { return Ok(0.0) };
        // The bias of a latent is normalized with it.
        let SelfAttention { qkv: Qkv::Stacked(qkv), kv, qk_norms, .. } = attention else { return Ok(0.0) };
        if kv == KvSource::OtherLayer {
            return Ok(0.0);
        }
        let HeadSizes { n_kv_heads, head_dim } = config.heads_of(layer);
        let norm_bias = in_norm.as_ref().and_then(|norm| norm.bias.clone());
        let vector = |tensor| to_f32(read(tensor)?);
        let of_key_norm = match qk_norms.map(|qk| qk.norms) {
            Some([_, NormParts { weight, bias: Some(bias), options }]) => {
                let weight = vector(weight)?.into_iter().map(|weight| f64::from(weight + options.weight_offset));
                let squares: f64 = weight.map(|weight| weight * weight).sum();
                let most = vector(bias)?.into_iter().fold(0.0, |most, bias| f64::max(most, f64::from(bias.abs())));
                if most == 0.0 { 0.0 } else { most / (squares / head_dim as f64).sqrt() }
            }
            _ => 0.0,
        };
        if qkv.bias.is_none() && norm_bias.is_none() {
            return Ok(of_key_norm);
        }
        let bias = qkv.bias.clone().map(vector).transpose()?;
        let norm_bias = norm_bias.map(vector).transpose()?;
        // Normalized inputs have a root mean square of 1 before the norm's weight.
        let norm_weight: Vec<f64> = match in_norm {
            Some(NormParts { weight, options, .. }) => {
                vector(weight)?.into_iter().map(|weight| f64::from(weight + options.weight_offset)).collect()
            }
            None => vec![1.0; config.d_model],
        };
        let mut largest = of_key_norm;
        for head in 0..n_kv_heads {
            let first = config.gate_width_of(layer) + config.q_width_of(layer) + head * head_dim;
            let rows = qkv.weight.read_rows(first..first + head_dim)?;
            let (mut sum_of_squares, mut most) = (0.0, 0.0);
            for (row, at) in rows.chunks_exact(config.d_model).zip(first..) {
                let weighted = row.iter().zip(&norm_weight).map(|(&value, weight)| f64::from(value) * weight);
                sum_of_squares += weighted.map(|value| value * value).sum::<f64>();
                let of_norm = norm_bias.iter().flat_map(|bias| bias.iter().zip(row)).map(|(a, b)| f64::from(a * b));
                let of_matrix = bias.as_ref().map_or(0.0, |bias| f64::from(bias[at]));
                most = f64::max(most, (of_matrix + of_norm.sum::<f64>()).abs());
            }
            let rest = (sum_of_squares / head_dim as f64).sqrt();
            // Without a bias there is nothing to compare, however small the rest is.
            largest = f64::max(largest, if most == 0.0 { 0.0 } else { most / rest });
        }
        Ok(largest)
    }
}
