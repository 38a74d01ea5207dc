//! Queries, keys and values of latent attention, as other attention has them.

use burn::tensor::Tensor;

use super::{LatentHeads, LatentQkv, LinearParts, NormParts, fork, linear_with_lora, norm};

/// From `x [n_rows, d_model]`, normalized first if there is a norm, to queries, keys and values of all heads side by
/// side, `[n_rows, 3 * n_heads * head_dim]`, not rotated yet. Queries and keys begin with their rotated part.
/// `head_dim` is the larger of the widths of keys and values; the narrower ones are padded with zeros.
pub(crate) fn latent_qkv(
    x: Tensor<2>,
    in_norm: Option<NormParts>,
    latent: &LatentQkv<NormParts, LinearParts<'_>>,
) -> Tensor<2> {
    let LatentQkv { q_down, q, kv_down, kv_norm, kv_up, heads } = latent;
    let normed = |x, NormParts { weight, bias, options }| norm(x, weight, bias, options);
    let [for_queries, for_latent] = fork(match in_norm {
        Some(in_norm) => normed(x, in_norm),
        None => x,
    });
    let for_queries = match q_down {
        Some((down, of_latent)) => normed(linear_with_lora(for_queries, down.clone()), of_latent.clone()),
        None => for_queries,
    };
    let queries = linear_with_lora(for_queries, q.clone());
    let down = linear_with_lora(for_latent, kv_down.clone());
    let [n_rows, width] = down.dims();
    let rotated = down.clone().slice([0..n_rows, 0..heads.rope_dim]);
    let of_keys_and_values = normed(down.slice([0..n_rows, heads.rope_dim..width]), kv_norm.clone());
    side_by_side(queries, rotated, linear_with_lora(of_keys_and_values, kv_up.clone()), *heads)
}

/// `rotated [n_rows, rope_dim]` is the first part of every head's key; `up [n_rows, n_heads * (plain_dim + value_dim)]`
/// has the rest of each key, then the values.
fn side_by_side(queries: Tensor<2>, rotated: Tensor<2>, up: Tensor<2>, heads: LatentHeads) -> Tensor<2> {
    let LatentHeads { n_heads, rope_dim, plain_dim, value_dim } = heads;
    let ([n_rows, width], of_keys) = (up.dims(), n_heads * plain_dim);
    let head_dim = value_dim.max(rope_dim + plain_dim);
    let padded = |x: Tensor<3>| match x.dims() {
        [_, _, width] if width < head_dim => {
            let zeros = Tensor::zeros([n_rows, n_heads, head_dim - width], &x.device());
            Tensor::cat(vec![x, zeros], 2)
        }
        _ => x,
    };
    let plain = up.clone().slice([0..n_rows, 0..of_keys]).reshape([n_rows, n_heads, plain_dim]);
    let keys = Tensor::cat(vec![rotated.reshape([n_rows, 1, rope_dim]).repeat_dim(1, n_heads), plain], 2);
    let values = up.slice([0..n_rows, of_keys..width]).reshape([n_rows, n_heads, value_dim]);
    let queries = queries.reshape([n_rows, n_heads, rope_dim + plain_dim]);
    Tensor::cat([queries, keys, values].map(padded).into(), 1).reshape([n_rows, 3 * n_heads * head_dim])
}
