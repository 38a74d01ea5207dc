//! Short convolutions of recurrent layers.

use burn::tensor::{Tensor, activation::silu};

use super::{
    cpu,
    recurrence::{check_states, with_states},
    training::apply,
    types::{Placement, RecurrentRows, ShortConv, StatePart},
};

/// A depthwise causal convolution: row `t` of a sequence is `sum over j of weight[j] * x[t - kernel + 1 + j]`, plus a bias,
/// then SiLU if the convolution has it. Rows before the first are 0.
///
/// `x [n_rows, channels]`; returns the same shape. With `state`, a span that continues its sequence reads the inputs
/// before it from its slot, and stores its last inputs there.
///
/// # Panics
/// Unless the shapes agree, and spans have slots of `state` exactly if it is given.
pub(crate) fn short_conv(
    x: Tensor<2>,
    conv: &ShortConv,
    rows: &RecurrentRows,
    state: Option<StatePart<'_>>,
) -> Tensor<2> {
    let dims = x.dims();
    let [channels, kernel] = conv.weight.dims();
    assert_eq!(dims, [rows.n_rows(), channels], "the input of a convolution");
    check_states(rows, &state, ShortConv::state_len(channels, kernel));
    match (Placement::of(&x.device()), state) {
        (Placement::Cpu, state) => {
            let (x, weight) = (cpu::columns(x), cpu::values(conv.weight.clone()));
            let bias = conv.bias.clone().map(cpu::values);
            let conv = cpu::Conv {
                weight: weight.as_slice(),
                bias: bias.as_ref().map(|bias| bias.as_slice()),
                channels,
                kernel,
                has_silu: conv.has_silu,
            };
            cpu::tensor(with_states(state, |states| conv.forward(x.rows(), rows.spans(), states)), dims)
        }
        (Placement::CpuTraining, None) => {
            let inputs = [x.into(), conv.weight.clone().into()].into_iter().chain(conv.bias.clone().map(Into::into));
            apply(inputs.collect(), cpu::Convolve { rows: rows.clone(), has_silu: conv.has_silu })
        }
        (_, state) => short_conv_reference(x, conv, rows, state),
    }
}

/// [`short_conv`] between two gates. `projected [n_rows, 3 channels]` has, side by side, the gate before the
/// convolution, the gate after it, and the input. Returns `[n_rows, channels]`.
///
/// # Panics
/// As [`short_conv`].
pub(crate) fn gated_short_conv(
    projected: Tensor<2>,
    conv: &ShortConv,
    rows: &RecurrentRows,
    state: Option<StatePart<'_>>,
) -> Tensor<2> {
    let ([n_rows, _], [channels, _]) = (projected.dims(), conv.weight.dims());
    let [before, behind, x] =
        [0, 1, 2].map(|part| projected.clone().slice([0..n_rows, part * channels..(part + 1) * channels]));
    match Placement::of(&x.device()) {
        Placement::Cpu => {
            let (before, behind, x) = (cpu::columns(before), cpu::columns(behind), cpu::columns(x));
            let input = cpu::tensor(cpu::product(n_rows, before.rows(), x.rows()), [n_rows, channels]);
            let output = short_conv(input, conv, rows, state);
            cpu::changed(output, |values| cpu::multiply_rows(values, behind.rows()))
        }
        _ => behind * short_conv(before * x, conv, rows, state),
    }
}

/// [`short_conv`] in plain Burn operations.
pub(crate) fn short_conv_reference(
    x: Tensor<2>,
    conv: &ShortConv,
    rows: &RecurrentRows,
    mut state: Option<StatePart<'_>>,
) -> Tensor<2> {
    let [channels, kernel] = conv.weight.dims();
    let before = kernel - 1;
    let mut outputs = Vec::new();
    for span in rows.spans() {
        let len = span.rows.len();
        let kept = state
            .as_ref()
            .zip(span.slot)
            .map(|(part, slot)| [slot..slot + 1, part.first..part.first + ShortConv::state_len(channels, kernel)]);
        let past = match (&state, &kept) {
            (Some(part), Some(place)) if !span.is_first => {
                part.pool.clone().slice(place.clone()).reshape([before, channels])
            }
            _ => Tensor::zeros([before, channels], &x.device()),
        };
        let all = Tensor::cat(vec![past, x.clone().slice([span.rows.clone(), 0..channels])], 0);
        let tap = |j: usize| {
            let weight = conv.weight.clone().slice([0..channels, j..j + 1]).reshape([1, channels]);
            all.clone().slice([j..j + len, 0..channels]) * weight
        };
        let sum = (1..kernel).fold(tap(0), |sum, j| sum + tap(j));
        let sum = conv.bias.clone().map_or(sum.clone(), |bias| sum + bias.unsqueeze());
        outputs.push(if conv.has_silu { silu(sum) } else { sum });
        if let (Some(part), Some(place)) = (&mut state, kept) {
            let last = all.slice([len..len + before, 0..channels]).reshape([1, before * channels]);
            part.pool.inplace(|pool| pool.slice_assign(place, last));
        }
    }
    Tensor::cat(outputs, 0)
}
