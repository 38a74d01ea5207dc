//! Causal self-attention: projections, positions and grouped heads around the attention operations.

use std::ops::Range;

use burn::{
    module::Module,
    tensor::{Device, Tensor},
};

#[cfg(feature = "gpu")]
use crate::ops::Upload;
use crate::{
    config::{GptConfig, Positions, QkNormSpan, Rope},
    error::Result,
    kv_cache::PagedStep,
    layers::{Linear, Norm},
    ops::{
        self, AttentionOptions, BlockScratch, HeadNormParts, Ints, LinearParts, PagedAttention, Rotation, Rows, Weight,
    },
    params::{ParamList, ParamSource},
    position::{self, Span},
};

/// How the rows of a forward pass attend.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "lives for one forward pass")]
pub enum AttentionContext<'a> {
    /// Whole sequences side by side, each causally over itself: training and evaluation.
    Dense(Dense<'a>),
    /// Rows behind what a cache holds: prefill and decoding, mixed in any lengths.
    Paged(PagedStep<'a>),
}

/// `batch` sequences of `seq_len` rows, one after the other.
#[derive(Debug)]
pub struct Dense<'a> {
    /// How many sequences.
    pub batch: usize,
    /// Rows in each.
    pub seq_len: usize,
    /// Where to leave each layer's attention weights, `[batch, n_heads, seq_len, seq_len]`, if they are wanted.
    pub maps: Option<&'a mut Vec<Tensor<4>>>,
}

impl AttentionContext<'_> {
    /// Whole sequences, without attention maps.
    pub fn dense(batch: usize, seq_len: usize) -> Self {
        Self::Dense(Dense { batch, seq_len, maps: None })
    }

    /// Where the rows stand in their texts; of one text where all are alike.
    fn spans(&self) -> Vec<Span> {
        match self {
            Self::Dense(dense) => Span::of_rows(0..dense.seq_len, dense.seq_len).collect(),
            Self::Paged(step) => step.spans.clone(),
        }
    }

    /// The position of each row within its text; of one text where all are alike.
    fn positions(&self) -> Vec<usize> {
        self.spans().into_iter().flat_map(|span| span.positions).collect()
    }

    /// How many rows attend.
    fn n_rows(&self) -> usize {
        match self {
            Self::Dense(dense) => dense.batch * dense.seq_len,
            Self::Paged(step) => step.slots().host().len(),
        }
    }

    /// How often [`positions`](Self::positions) repeats to cover all rows.
    fn repeats(&self) -> usize {
        match self {
            Self::Dense(dense) => dense.batch,
            Self::Paged(_) => 1,
        }
    }
}

/// What the layers of one forward pass need and none should compute again.
#[derive(Debug)]
pub(crate) struct Pass<'a> {
    context: AttentionContext<'a>,
    config: &'a GptConfig,
    /// Of layers without the window, and of those with it; one of them where all layers are alike.
    reaches: [Option<Reach>; 2],
    /// The same.
    rotations: [Option<Rotation>; 2],
    added: AddedPositions,
    scratch: BlockScratch,
}

/// What is added to the embeddings of the rows, where positions are.
#[derive(Debug)]
pub(crate) enum AddedPositions {
    Nothing,
    /// A trained vector for each of these positions.
    Learned(Ints),
    /// `[n_rows, d_model]`.
    Sinusoidal(Rows),
}

/// How far rows see.
#[derive(Debug)]
struct Reach {
    options: AttentionOptions,
    dense_bias: Option<Tensor<4>>,
}

impl Reach {
    fn new(config: &GptConfig, window: Option<usize>, context: &AttentionContext<'_>, device: &Device) -> Self {
        let options = AttentionOptions {
            n_heads: config.n_heads,
            n_kv_heads: config.n_kv_heads,
            head_dim: config.head_dim,
            scale: config.score_scale(),
            softcap: config.attention_softcap,
            sliding_window: window,
            alibi_slopes: (config.positions == Positions::Alibi).then(|| position::alibi_slopes(config.n_heads)),
        };
        let dense_bias = match context {
            AttentionContext::Dense(dense) => ops::causal_bias(0..dense.seq_len, 0, &options, device),
            AttentionContext::Paged(_) => None,
        };
        Self { options, dense_bias }
    }
}

/// The rotation of the context's rows.
fn rotation_of(rope: &Rope, context: &AttentionContext<'_>, device: &Device) -> Rotation {
    let angles = position::rope_angles(&context.spans(), rope);
    let n_rows = angles.len() / (rope.rotary_dim / 2);
    let rotation = Rotation::new(&angles, n_rows, device);
    rotation.scaled(position::rope_attention_factor(rope)).repeat(context.repeats())
}

impl<'a> Pass<'a> {
    pub(crate) fn new(config: &'a GptConfig, context: AttentionContext<'a>, device: &Device) -> Self {
        let has = |windowed: bool| (0..config.n_layers).any(|layer| config.window_of(layer).is_some() == windowed);
        let reach = |window: Option<usize>| has(window.is_some()).then(|| Reach::new(config, window, &context, device));
        let reaches = [reach(None), config.sliding_window.and_then(|window| reach(Some(window)))];
        let rotation = |rope: &Rope| rotation_of(rope, &context, device);
        let rotations = match &config.positions {
            Positions::Rope(rope) => [Some(rotation(rope)), config.window_rope.as_ref().map(rotation)],
            _ => [None, None],
        };
        let row_positions = || context.positions().repeat(context.repeats());
        let added = match &config.positions {
            Positions::Learned => {
                let positions = row_positions().into_iter().map(|position| position as i32);
                AddedPositions::Learned(Ints::new(positions.collect(), device))
            }
            Positions::Sinusoidal => {
                let rows = position::sinusoidal(&row_positions(), config.d_model);
                AddedPositions::Sinusoidal(Rows::new(rows, config.d_model, device))
            }
            _ => AddedPositions::Nothing,
        };
        Self { context, config, reaches, rotations, added, scratch: BlockScratch::default() }
    }

    /// How many rows go through the layers.
    pub(crate) fn n_rows(&self) -> usize {
        self.context.n_rows()
    }

    /// The step over a cache, if rows attend over one.
    #[cfg(feature = "gpu")]
    pub(crate) fn paged_step(&mut self) -> Option<&mut PagedStep<'a>> {
        match &mut self.context {
            AttentionContext::Dense(_) => None,
            AttentionContext::Paged(step) => Some(step),
        }
    }

    /// From now on, keys and values are stored by operations that read nothing of the cache.
    #[cfg(feature = "gpu")]
    pub(crate) fn store_apart(&mut self) {
        if let AttentionContext::Paged(step) = &mut self.context {
            step.sequences.store_apart();
        }
    }

    /// What is added to embeddings.
    pub(crate) fn added(&self) -> &AddedPositions {
        &self.added
    }

    /// All that a GPU is told where sequences decode, but for token ids, and numbers that are the same for passes of one
    /// model that launch the same. `None` where they do not, or where the GPU has no kernel of ours for attention.
    #[cfg(feature = "gpu")]
    pub(crate) fn uploads(&self) -> Option<(Vec<Upload<'_>>, Vec<usize>)> {
        let AttentionContext::Paged(step) = &self.context else { return None };
        if !step.sequences.decode() {
            return None;
        }
        let mut uploads = vec![Upload::Ints(step.slots().numbers())];
        let mut sizes = vec![step.slots().host().len()];
        for reach in self.reaches.iter().flatten() {
            let (table, table_sizes) = step.sequences.table(&reach.options)?;
            uploads.push(Upload::Ints(table));
            sizes.extend(table_sizes);
        }
        uploads.extend(self.rotations.iter().flatten().map(|rotation| Upload::Rows(rotation.table())));
        match &self.added {
            AddedPositions::Nothing => {}
            AddedPositions::Learned(positions) => uploads.push(Upload::Ints(positions)),
            AddedPositions::Sinusoidal(rows) => uploads.push(Upload::Rows(rows)),
        }
        Some((uploads, sizes))
    }

    /// What a whole block attends to, and the memory for it, where rows attend over a cache.
    pub(crate) fn paged(&mut self, layer: usize) -> Option<(PagedAttention<'_>, &mut BlockScratch)> {
        let Self { context, config, reaches, rotations, scratch, .. } = self;
        let AttentionContext::Paged(step) = context else { return None };
        let (pools, slots, sequences) = step.parts(layer);
        let (options, rotation) = (&reach_of(reaches, config, layer).options, rotation_at(rotations, config, layer));
        Some((PagedAttention { pools, slots, sequences, options, rotation }, scratch))
    }
}

/// How far the rows of `layer` see.
fn reach_of<'a>(reaches: &'a [Option<Reach>; 2], config: &GptConfig, layer: usize) -> &'a Reach {
    let of_kind = &reaches[usize::from(config.window_of(layer).is_some())];
    of_kind.as_ref().unwrap_or_else(|| unreachable!("`Pass::new` asked every layer"))
}

/// How `layer` rotates, if it does.
fn rotation_at<'a>(rotations: &'a [Option<Rotation>; 2], config: &GptConfig, layer: usize) -> Option<&'a Rotation> {
    config.rope_of(layer)?;
    let [usual, windowed] = rotations;
    windowed.as_ref().filter(|_| config.window_of(layer).is_some()).or(usual.as_ref())
}

/// Masked multi-head self-attention with grouped key and value heads.
#[derive(Module, Debug)]
pub(crate) struct CausalSelfAttention {
    // Queries, keys and values in one matrix: one product instead of three.
    qkv: Linear,
    q_norm: Option<Norm>,
    k_norm: Option<Norm>,
    out: Linear,
    #[module(skip)]
    norm_span: QkNormSpan,
}

impl CausalSelfAttention {
    pub(crate) fn new(path: &str, params: &mut ParamSource<'_>) -> Result<Self> {
        Ok(Self {
            qkv: Linear::new(&format!("{path}.qkv"), params)?,
            q_norm: Norm::if_any(&format!("{path}.q_norm"), params)?,
            k_norm: Norm::if_any(&format!("{path}.k_norm"), params)?,
            out: Linear::new(&format!("{path}.out"), params)?,
            norm_span: params.config.qk_norm_span,
        })
    }

    /// The two products.
    pub(crate) fn products(&self) -> [LinearParts<'_>; 2] {
        [self.qkv.parts(), self.out.parts()]
    }

    /// The norms between the first product and the positions, if there are any.
    pub(crate) fn head_norms(&self) -> Option<HeadNormParts> {
        let (q_norm, k_norm) = self.q_norm.as_ref().zip(self.k_norm.as_ref())?;
        Some(HeadNormParts { norms: [q_norm.parts(), k_norm.parts()], span: self.norm_span })
    }

    pub(crate) fn matrices(&self) -> [&Weight; 2] {
        [&self.qkv, &self.out].map(Linear::weight)
    }

    pub(crate) fn list_params<'a>(&'a self, path: &str, list: &mut ParamList<'a>) {
        self.qkv.list_params(&format!("{path}.qkv"), list);
        self.q_norm.iter().for_each(|norm| norm.list_params(&format!("{path}.q_norm"), list));
        self.k_norm.iter().for_each(|norm| norm.list_params(&format!("{path}.k_norm"), list));
        self.out.list_params(&format!("{path}.out"), list);
    }

    /// `x [n_rows, d_model]`, normalised first where there is a norm, to the heads' mixed values,
    /// `[n_rows, n_heads * head_dim]`, which [`out`](Self::out) takes back.
    pub(crate) fn forward(&self, layer: usize, x: Tensor<2>, norm: Option<&Norm>, pass: &mut Pass<'_>) -> Tensor<2> {
        let Pass { context, config, reaches, rotations, .. } = pass;
        let Reach { options, dense_bias } = reach_of(reaches, config, layer);
        let rotation = rotation_at(rotations, config, layer);
        let AttentionOptions { n_heads, n_kv_heads, head_dim, .. } = *options;
        let [n_rows, _] = x.dims();
        let qkv = match norm {
            Some(norm) => self.qkv.forward_normed(x, norm),
            None => self.qkv.forward(x),
        };
        let split = |qkv: Tensor<2>| {
            let qkv = qkv.reshape([n_rows, n_heads + 2 * n_kv_heads, head_dim]);
            let heads = |range: Range<usize>| qkv.clone().slice([0..n_rows, range, 0..head_dim]);
            [
                heads(0..n_heads),
                heads(n_heads..n_heads + n_kv_heads),
                heads(n_heads + n_kv_heads..n_heads + 2 * n_kv_heads),
            ]
        };
        let flat = |x: Tensor<3>| {
            let [_, n_heads, _] = x.dims();
            x.reshape([n_rows, n_heads * head_dim])
        };
        let qkv = match self.head_norms() {
            Some(HeadNormParts { norms, span }) => ops::norm_heads(qkv, norms, span, options),
            None => qkv,
        };
        match context {
            AttentionContext::Dense(dense) => {
                let [q, k, v] = split(qkv);
                let turn = |x: Tensor<3>| match rotation {
                    Some(rotation) => ops::rope(x, rotation),
                    None => x,
                };
                let qkv = [turn(q), turn(k), v].map(flat);
                let (mixed, probs) = ops::attention_dense(qkv, dense_bias.clone(), dense.batch, options);
                if let Some(maps) = &mut dense.maps {
                    maps.push(probs);
                }
                mixed
            }
            AttentionContext::Paged(step) => step.attend(layer, qkv, rotation, options),
        }
    }

    /// The projection back to `d_model`.
    pub(crate) fn out(&self) -> &Linear {
        &self.out
    }
}
