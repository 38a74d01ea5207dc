//! Fields of encoder-decoders: an encoder, and relative positions.

use serde::{Deserialize, Serialize};

use super::{Activation, GptConfig, NormPosition, Positions, Sizes, validate::require};
use crate::error::Result;

/// Relative position buckets: short distances between a query and a key have a bucket each, longer ones share buckets
/// of growing ranges ([T5](https://arxiv.org/abs/1910.10683), 2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelativeBuckets {
    /// Number of buckets. In a bidirectional model, each direction has half of them.
    pub n_buckets: usize,
    /// All distances from here on have the last bucket.
    pub max_distance: usize,
}

impl RelativeBuckets {
    /// The bucket of a key at `distance` from a query (negative: the key comes earlier). In f32, as in `transformers`.
    pub fn bucket(self, distance: isize, bidirectional: bool) -> usize {
        let n_buckets = if bidirectional { self.n_buckets / 2 } else { self.n_buckets };
        let of_direction = if bidirectional && distance > 0 { n_buckets } else { 0 };
        let distance = if bidirectional { distance.unsigned_abs() } else { distance.min(0).unsigned_abs() };
        let n_exact = n_buckets / 2;
        let within = if distance < n_exact {
            distance
        } else {
            let growth = (self.max_distance as f64 / n_exact as f64).ln() as f32;
            let place = (distance as f32 / n_exact as f32).ln() / growth * (n_buckets - n_exact) as f32;
            (n_exact + place as usize).min(n_buckets - 1)
        };
        of_direction + within
    }
}

impl Positions {
    /// Whether a learned vector per position is added to the embedding.
    pub fn are_learned(&self) -> bool {
        matches!(self, Self::Learned | Self::LearnedAndRelative(_))
    }

    /// The buckets of distances that have numbers, which are added to scores.
    pub fn buckets(&self) -> Option<RelativeBuckets> {
        match self {
            Self::Relative(buckets) | Self::RelativeByLayer(buckets) | Self::LearnedAndRelative(buckets) => {
                Some(*buckets)
            }
            _ => None,
        }
    }

    /// The buckets of which each layer has numbers of its own.
    pub fn own_buckets(&self) -> Option<RelativeBuckets> {
        match self {
            Self::RelativeByLayer(buckets) => Some(*buckets),
            _ => None,
        }
    }
}

impl GptConfig {
    /// The architecture of [T5](https://arxiv.org/abs/1910.10683) 1.1: an encoder and a decoder of `sizes` each, with Llama's norms and
    /// gated MLPs, and with distances in scores instead of positions.
    pub fn t5(sizes: Sizes) -> Self {
        let decoder = Self {
            positions: Positions::Relative(RelativeBuckets { n_buckets: 32, max_distance: 128 }),
            activation: Activation::GeluTanh,
            attention_scale: Some(1.0),
            norm_eps: 1e-6,
            ..Self::llama(sizes)
        };
        decoder.with_own_encoder()
    }

    /// A decoder with an encoder of the same layers before it.
    #[must_use]
    pub fn with_own_encoder(self) -> Self {
        let encoder =
            Self { bidirectional: true, tie_embeddings: true, logit_multiplier: 1.0, encoder: None, ..self.clone() };
        Self { encoder: Some(Box::new(encoder)), ..self }
    }

    /// Whether the model is a decoder with an encoder before it.
    pub fn is_encoder_decoder(&self) -> bool {
        self.encoder.is_some()
    }

    /// The same with another dropout probability, including the encoder's.
    #[must_use]
    pub fn with_dropout(mut self, dropout: f64) -> Self {
        self.dropout = dropout;
        self.encoder.iter_mut().for_each(|encoder| encoder.dropout = dropout);
        self
    }

    /// Most tokens of a source; 0 without an encoder.
    pub fn max_source_len(&self) -> usize {
        self.encoder.as_ref().map_or(0, |encoder| encoder.max_seq_len)
    }

    /// Checks relative positions, and the encoder.
    pub(super) fn validate_seq2seq(&self) -> Result<()> {
        if let Some(RelativeBuckets { n_buckets, max_distance }) = self.positions.buckets() {
            // At least one exact distance and one range in each direction.
            let least = if self.bidirectional { 4 } else { 2 };
            require(
                "positions.relative.n_buckets",
                (least..=1 << 16).contains(&n_buckets) && n_buckets % 2 == 0,
                || format!("must be even and in {least}..=2^16, got {n_buckets}"),
            )?;
            require("positions.relative.max_distance", (n_buckets..=1 << 28).contains(&max_distance), || {
                format!("must be in n_buckets = {n_buckets}..=2^28, got {max_distance}")
            })?;
            require("sliding_window", self.sliding_window.is_none(), || {
                "must be absent with positions = relative".to_owned()
            })?;
        }
        let Some(encoder) = &self.encoder else { return Ok(()) };
        let plain = |config: &Self| {
            config.recurrent.is_none()
                && config.latent.is_none()
                && config.experts.is_none()
                && config.per_layer_inputs.is_none()
                && config.layers_without_mixer.is_empty()
                && config.layers_without_mlp.is_empty()
                && config.n_shared_kv_layers == 0
                && config.full_heads.is_none()
                && config.sliding_window.is_none()
                && !config.keys_as_values
                && !config.parallel_residual
                && !matches!(config.norm_position, NormPosition::Sandwich)
        };
        require("encoder", plain(self) && plain(encoder), || {
            "must be absent unless each layer of both models has attention to all tokens and then an MLP".to_owned()
        })?;
        require("encoder.encoder", encoder.encoder.is_none(), || "must be absent".to_owned())?;
        require("bidirectional", !self.bidirectional, || "must be false with an encoder before the model".to_owned())?;
        require("encoder.bidirectional", encoder.bidirectional, || "must be true".to_owned())?;
        require("encoder.final_norm_eps", encoder.final_norm_eps.is_none(), || "must be absent".to_owned())?;
        for (field, of_encoder, own) in [
            ("encoder.vocab_size", encoder.vocab_size, self.vocab_size),
            ("encoder.d_model", encoder.d_model, self.d_model),
        ] {
            require(field, of_encoder == own, || format!("must be that of the decoder, {own}, got {of_encoder}"))?;
        }
        encoder.validate()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed by `T5Attention._relative_position_bucket` of transformers.
    #[test]
    fn buckets_of_distances_are_those_of_transformers() {
        let buckets = RelativeBuckets { n_buckets: 32, max_distance: 128 };
        let of = |distances: &[isize], bidirectional| -> Vec<usize> {
            distances.iter().map(|&distance| buckets.bucket(distance, bidirectional)).collect()
        };
        let distances = [
            -300, -128, -127, -100, -91, -90, -64, -46, -45, -33, -32, -31, -23, -20, -16, -15, -11, -8, -7, -1, 0, 1,
            7, 8, 11, 12, 16, 22, 23, 32, 45, 46, 64, 90, 91, 128, 500,
        ];
        let both_ways = [
            15, 15, 15, 15, 15, 14, 14, 13, 12, 12, 12, 11, 11, 10, 10, 9, 8, 8, 7, 1, 0, 17, 23, 24, 24, 25, 26, 26,
            27, 28, 28, 29, 30, 30, 31, 31, 31,
        ];
        assert_eq!(of(&distances, true), both_ways);
        let behind = [31, 31, 31, 30, 29, 29, 26, 24, 23, 21, 21, 21, 18, 17, 16, 15, 11, 8, 7, 1];
        assert_eq!(of(&distances[..20], false), behind);
        assert_eq!(of(&distances[20..], false), [0; 17]);
    }
}
