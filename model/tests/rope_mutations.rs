//! Rotary positions as they could be read wrong, for `golden`.

use hearth_model::config::{Rope, RopeScaling};

/// `rope` with another number of rotated dimensions.
pub(crate) fn rotated(rope: &Rope, rotary_dim: usize) -> Rope {
    let mut rope = Rope { rotary_dim, ..rope.clone() };
    if let RopeScaling::LongRope { short_factors, long_factors, .. } = &mut rope.scaling {
        [short_factors, long_factors].into_iter().for_each(|factors| factors.resize(rotary_dim / 2, 2.0));
    }
    rope
}

/// Every way in which the scaling of `rope`, in a context of `max_seq_len`, could be read wrong.
pub(crate) fn scaling_mutations(rope: &Rope, max_seq_len: usize) -> Vec<(&'static str, RopeScaling)> {
    let mut mutations = vec![];
    let others = [
        RopeScaling::None,
        RopeScaling::Linear { factor: 2.5 },
        RopeScaling::Llama3 { factor: 5.0, low_freq_factor: 0.5, high_freq_factor: 3.0, original_max_seq_len: 64 },
        RopeScaling::Yarn {
            factor: 5.0,
            attention_factor: 1.3,
            beta_fast: 3.0,
            beta_slow: 0.1,
            original_max_seq_len: 64,
            truncate: true,
        },
    ];
    let kind = match rope.scaling {
        RopeScaling::Dynamic { .. } => std::mem::discriminant(&RopeScaling::None),
        ref scaling => std::mem::discriminant(scaling),
    };
    // A single frequency is not scaled by some kinds, and not always by others.
    if rope.rotary_dim > 2 {
        mutations.extend(others.into_iter().filter(|s| std::mem::discriminant(s) != kind).map(|s| ("rope.scaling", s)));
    }
    match rope.scaling {
        // A dynamic scaling begins beyond the context.
        RopeScaling::None | RopeScaling::Dynamic { .. } => {}
        RopeScaling::LongRope { ref short_factors, ref long_factors, attention_factor, original_max_seq_len } => {
            let with = |[short, long]: [&Vec<f32>; 2], attention_factor, original_max_seq_len| RopeScaling::LongRope {
                short_factors: short.clone(),
                long_factors: long.clone(),
                attention_factor,
                original_max_seq_len,
            };
            let as_read = [short_factors, long_factors];
            let halved = as_read.map(|factors| factors.iter().map(|factor| 0.5 * factor).collect::<Vec<f32>>());
            let is_long = max_seq_len > original_max_seq_len;
            let (field, wrong) = match is_long {
                true => ("long_factors", [short_factors, &halved[1]]),
                false => ("short_factors", [&halved[0], long_factors]),
            };
            mutations.push((field, with(wrong, attention_factor, original_max_seq_len)));
            mutations.push(("attention_factor", with(as_read, 1.0, original_max_seq_len)));
            let other = if is_long { max_seq_len } else { max_seq_len - 1 };
            mutations.push(("original_max_seq_len", with(as_read, attention_factor, other)));
        }
        RopeScaling::Proportional { n_pairs, factor } => {
            mutations.push(("n_pairs", RopeScaling::Proportional { n_pairs: n_pairs - 1, factor }));
            mutations.push(("factor", RopeScaling::Proportional { n_pairs, factor: factor + 0.1 }));
        }
        RopeScaling::Linear { factor } => mutations.push(("factor", RopeScaling::Linear { factor: factor + 0.1 })),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_seq_len } => {
            let with = |factor, low_freq_factor, high_freq_factor, original_max_seq_len| RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_seq_len,
            };
            let (low, high) = (low_freq_factor, high_freq_factor);
            mutations.push(("factor", with(factor + 1.0, low, high, original_max_seq_len)));
            mutations.push(("low_freq_factor", with(factor, low * 0.5, high, original_max_seq_len)));
            mutations.push(("high_freq_factor", with(factor, low, high * 1.5, original_max_seq_len)));
            mutations.push(("original_max_seq_len", with(factor, low, high, original_max_seq_len * 2)));
        }
        RopeScaling::Yarn { factor, attention_factor, beta_fast, beta_slow, original_max_seq_len, truncate } => {
            let with = |attention_factor, beta_fast, beta_slow, truncate| RopeScaling::Yarn {
                factor,
                attention_factor,
                beta_fast,
                beta_slow,
                original_max_seq_len,
                truncate,
            };
            mutations.push(("attention_factor", with(1.0, beta_fast, beta_slow, truncate)));
            mutations.push(("beta_fast", with(attention_factor, 0.1 * beta_fast, beta_slow, truncate)));
            mutations.push(("beta_slow", with(attention_factor, beta_fast, 50.0 * beta_slow, truncate)));
            mutations.push(("truncate", with(attention_factor, beta_fast, beta_slow, !truncate)));
            let (factor, original_max_seq_len) = (factor + 0.5, original_max_seq_len * 8);
            for (field, factor, original_max_seq_len) in [
                ("factor", factor, original_max_seq_len / 8),
                ("original_max_seq_len", factor - 0.5, original_max_seq_len),
            ] {
                mutations.push((
                    field,
                    RopeScaling::Yarn {
                        factor,
                        attention_factor,
                        beta_fast,
                        beta_slow,
                        original_max_seq_len,
                        truncate,
                    },
                ));
            }
        }
    }
    mutations
}
