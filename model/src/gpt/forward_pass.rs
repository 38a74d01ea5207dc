//! State that the layers of one forward pass share: attention context, masks, rotations and added positions.

mod dense;

use std::sync::Arc;

use burn::tensor::{Device, Tensor};

pub use self::dense::{Dense, Source, Trace};
use crate::{
    config::{GptConfig, HeadSizes, Positions, Rope},
    gpt::{kv_cache::PagedStep, layers::Relative, lora::AdapterRows, position},
    ops::{
        self, AttentionOptions, BlockScratch, Dropout, Ints, PagedAttention, PagedRows, RecurrentRows, RelativeScores,
        Rotation, Routes, Rows, Upload,
    },
};

/// Which keys and values the rows of a forward pass attend to.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "lives for one forward pass")]
pub enum AttentionContext<'a> {
    /// Whole sequences side by side, with causal attention within each: training and evaluation.
    Dense(Dense<'a>),
    /// Rows that follow the contents of a cache: prefill and decoding, mixed in any lengths.
    Paged(PagedStep<'a>),
}

impl<'a> AttentionContext<'a> {
    /// One sequence, whose intermediate results go to `trace`.
    pub(crate) fn traced(seq_len: usize, trace: &'a mut Trace) -> Self {
        Self::Dense(Dense { trace: Some(trace), ..Dense::new(1, seq_len) })
    }

    /// Whole sequences, without attention maps or dropout.
    pub fn dense(batch: usize, seq_len: usize) -> Self {
        Self::Dense(Dense::new(batch, seq_len))
    }

    /// Whole sequences in training: the model's dropout depends on `dropout_seed` alone.
    pub fn training(batch: usize, seq_len: usize, dropout_seed: u64) -> Self {
        Self::Dense(Dense { dropout_seed: Some(dropout_seed), ..Dense::new(batch, seq_len) })
    }

    /// The same context for sequences that consist of several documents, with the position of each row in its document.
    ///
    /// # Panics
    /// Unless there is a position for each row, each sequence begins with 0, and other positions are 0 or follow the one
    /// before; or if the context is a step over a cache.
    #[must_use]
    pub fn with_positions(mut self, positions: Arc<Vec<u32>>) -> Self {
        let Self::Dense(dense) = &mut self else { unreachable!("positions of a step come from its cache") };
        assert_eq!(positions.len(), dense.batch * dense.seq_len, "positions, one for each row");
        for sequence in positions.chunks_exact(dense.seq_len.max(1)) {
            assert_eq!(sequence.first(), Some(&0), "a sequence begins with a document");
            let follow = sequence.windows(2).all(|pair| pair[1] == 0 || pair[1] == pair[0] + 1);
            assert!(follow, "positions of a document are consecutive");
        }
        dense.positions = Some(positions);
        self
    }

    /// The same context for the decoder of an encoder-decoder: `encoded [batch * source_len, d_model]` is the encoder's
    /// output for the sequences' sources, all of the same length.
    ///
    /// # Panics
    /// If the context is a step over a cache, which has the sources already.
    #[must_use]
    pub fn with_source(mut self, encoded: Tensor<2>) -> Self {
        let Self::Dense(dense) = &mut self else { unreachable!("sources of a step are in its cache") };
        dense.source = Some(Source { encoded, lens: None });
        self
    }

    /// [`with_source`](Self::with_source) for sources of different lengths, `lens [batch]`: in `encoded [batch *
    /// source_len, d_model]`, the rows after the tokens of a source are padding.
    ///
    /// # Panics
    /// As [`with_source`](Self::with_source); unless there is a length for each sequence, from 1 to `source_len`.
    #[must_use]
    pub fn with_sources(mut self, encoded: Tensor<2>, lens: Arc<Vec<usize>>) -> Self {
        let Self::Dense(dense) = &mut self else { unreachable!("sources of a step are in its cache") };
        let source_len = encoded.dims()[0] / dense.batch.max(1);
        assert_eq!(lens.len(), dense.batch, "lengths, one for each sequence");
        assert!(lens.iter().all(|len| (1..=source_len).contains(len)), "lengths within {source_len} rows");
        let is_padded = lens.iter().any(|len| *len < source_len);
        dense.source = Some(Source { encoded, lens: is_padded.then_some(lens) });
        self
    }

    /// The position of each row in its text. If all sequences have the same positions, only the positions of one
    /// sequence.
    fn positions(&self) -> Vec<usize> {
        match self {
            Self::Dense(Dense { positions: Some(positions), .. }) => positions.iter().map(|&at| at as usize).collect(),
            Self::Dense(dense) => (0..dense.seq_len).collect(),
            Self::Paged(step) => {
                let sequences = step.sequences.as_slice().iter();
                sequences.flat_map(|sequence| sequence.start..sequence.start + sequence.rows.len()).collect()
            }
        }
    }

    /// For each row whether it belongs to the second text of a pair.
    fn token_types(&self) -> Vec<bool> {
        match self {
            Self::Dense(Dense { seq_len, second_texts: Some(second_texts), .. }) => {
                let of_sequence = |second: &Option<usize>| {
                    let second = second.unwrap_or(usize::MAX);
                    (0..*seq_len).map(move |position| position >= second)
                };
                second_texts.iter().flat_map(of_sequence).collect()
            }
            Self::Dense(dense) => vec![false; dense.batch * dense.seq_len],
            Self::Paged(step) => {
                let sequences = step.sequences.as_slice().iter().zip(step.second_texts());
                let of_sequence = |(rows, second): (&PagedRows, &Option<usize>)| {
                    let second = second.unwrap_or(usize::MAX);
                    (rows.start..rows.start + rows.rows.len()).map(move |position| position >= second)
                };
                sequences.flat_map(of_sequence).collect()
            }
        }
    }

    /// Number of rows.
    fn n_rows(&self) -> usize {
        match self {
            Self::Dense(dense) => dense.batch * dense.seq_len,
            Self::Paged(step) => step.slots().host().len(),
        }
    }

    /// How many times [`positions`](Self::positions) repeats to cover all rows.
    fn repeats(&self) -> usize {
        match self {
            Self::Dense(dense) if dense.positions.is_none() => dense.batch,
            Self::Dense(_) | Self::Paged(_) => 1,
        }
    }
}

/// One forward pass: its attention context, and data that its layers share, computed once.
#[derive(Debug)]
pub(crate) struct ForwardPass<'a> {
    context: AttentionContext<'a>,
    config: &'a GptConfig,
    /// Attention masks of layers without and with the sliding window, if the model has such layers.
    masks: [Option<AttentionMask>; 2],
    /// Rotations of the same two kinds; one entry if both are equal.
    rotations: [Option<Rotation>; 2],
    added: AddedPositions,
    /// The type of each row's token, if the model has token types.
    token_types: Option<Ints>,
    /// Factor of each row's queries, `[n_rows, 1]`.
    query_factors: Option<Rows>,
    /// How the scores of the encoder's rows are computed, if there is an encoder.
    cross_options: Option<AttentionOptions>,
    /// Hides the padding of sources in cross-attention.
    cross_bias: Option<Tensor<4>>,
    /// Keys and values that later layers without and with the window attend to, `[n_rows, 2 * kv_width]`, before rotation. A step
    /// over a cache has them there.
    lent: [Option<Tensor<2>>; 2],
    /// Per-layer inputs of all blocks, side by side: `[n_rows, n_layers * width]`.
    pub(crate) per_layer: Option<Tensor<2>>,
    /// The rows as recurrent layers see them, if the model has such layers.
    recurrent_rows: Option<RecurrentRows>,
    scratch: BlockScratch,
    /// The routers' choices in the layers so far, if they are recorded.
    pub(crate) routes: Option<Vec<Routes>>,
}

/// Inputs of one attention layer of a pass.
pub(crate) struct LayerPass<'p, 'a> {
    pub(crate) context: &'p mut AttentionContext<'a>,
    pub(crate) mask: &'p AttentionMask,
    /// Rotation of queries and keys, if there is one.
    pub(crate) rotation: Option<&'p Rotation>,
    /// Factor of each row's queries, `[n_rows, 1]`.
    pub(crate) query_factors: Option<&'p Rows>,
    /// The layer whose keys and values this layer attends to.
    pub(crate) kv_layer: usize,
    /// Whether later layers attend to its keys and values.
    pub(crate) lends: bool,
    /// Keys and values that layers of this kind share.
    pub(crate) lent: &'p mut Option<Tensor<2>>,
}

/// Inputs of one recurrent layer of a pass.
#[derive(Debug)]
pub(crate) struct RecurrentPass<'p> {
    pub(crate) rows: &'p RecurrentRows,
    /// The states of the layer, `[n_states, slot_len]`, if the pass is a step over a cache.
    pub(crate) states: Option<&'p mut Tensor<2>>,
}

/// The tensors that dropout changes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DropoutPlace {
    /// The input of the first layer.
    Embeddings,
    /// Attention's addition to the residual stream in a layer.
    Attention(usize),
    /// The MLP's addition to the residual stream in a layer.
    Mlp(usize),
    /// Cross-attention's addition to the residual stream in a layer.
    Cross(usize),
}

/// Added positions of the rows' embeddings.
#[derive(Debug)]
pub(crate) enum AddedPositions {
    Nothing,
    /// A learned vector for each of these positions.
    Learned(Ints),
    /// `[n_rows, d_model]`.
    Sinusoidal(Rows),
}

/// The keys that rows see, and how scores are computed.
#[derive(Debug)]
pub(crate) struct AttentionMask {
    pub(crate) options: AttentionOptions,
    /// Added to the scores of [`AttentionContext::Dense`].
    pub(crate) dense_bias: Option<Tensor<4>>,
    /// The same without what distances add.
    hidden: Option<Tensor<4>>,
}

impl AttentionMask {
    fn new(config: &GptConfig, window: Option<usize>, context: &AttentionContext<'_>, device: &Device) -> Self {
        let HeadSizes { n_kv_heads, head_dim } = config.heads_with(window.is_some());
        let options = AttentionOptions {
            n_heads: config.n_heads,
            n_kv_heads,
            head_dim: config.padded_head_dim(head_dim),
            scale: config.attention_scale.unwrap_or_else(|| (head_dim as f64).sqrt().recip()),
            softcap: config.attention_softcap,
            sliding_window: window,
            bidirectional: config.bidirectional,
            alibi_slopes: (config.positions == Positions::Alibi).then(|| position::alibi_slopes(config.n_heads)),
            relative: None,
        };
        let is_relative = config.positions.buckets().is_some();
        let dense_bias = match context {
            AttentionContext::Dense(dense) if !dense.traces_attention() && !is_relative => None,
            AttentionContext::Dense(Dense { positions: Some(positions), seq_len, .. }) => {
                Some(ops::document_bias(positions, *seq_len, &options, device))
            }
            AttentionContext::Dense(dense) => ops::causal_bias(0..dense.seq_len, 0, &options, device),
            AttentionContext::Paged(_) => None,
        };
        Self { options, hidden: dense_bias.clone(), dense_bias }
    }
}

/// The rotation of the context's rows in a model with a context of `max_seq_len`.
fn rotation_of(rope: &Rope, context: &AttentionContext<'_>, max_seq_len: usize, device: &Device) -> Rotation {
    let angles = position::rope_angles(&context.positions(), rope, max_seq_len);
    let n_rows = angles.len() / (rope.rotary_dim / 2);
    let rotation = Rotation::new(&angles, n_rows, device);
    rotation.scaled(rope.scaling.attention_factor()).repeat(context.repeats())
}

impl<'a> ForwardPass<'a> {
    pub(crate) fn new(config: &'a GptConfig, context: AttentionContext<'a>, device: &Device) -> Self {
        let has = |windowed: bool| (0..config.n_layers).any(|layer| config.window_of(layer).is_some() == windowed);
        let mask =
            |window: Option<usize>| has(window.is_some()).then(|| AttentionMask::new(config, window, &context, device));
        let masks = [mask(None), config.sliding_window.and_then(|window| mask(Some(window)))];
        let rotation = |rope: &Rope| rotation_of(rope, &context, config.max_seq_len, device);
        let rotations = match &config.positions {
            Positions::Rope(rope) => [Some(rotation(rope)), config.window_rope.as_ref().map(rotation)],
            _ => [None, None],
        };
        let row_positions = || context.positions().repeat(context.repeats());
        let added = match &config.positions {
            Positions::Learned | Positions::LearnedAndRelative(_) => {
                let positions = row_positions().into_iter().map(|position| position as i32);
                AddedPositions::Learned(Ints::new(positions.collect(), device))
            }
            Positions::Sinusoidal => {
                let rows = position::sinusoidal(&row_positions(), config.d_model);
                AddedPositions::Sinusoidal(Rows::new(rows, config.d_model, device))
            }
            Positions::SinusoidalFromTwo => {
                let rows = position::sinusoidal_from_two(&row_positions(), config.d_model);
                AddedPositions::Sinusoidal(Rows::new(rows, config.d_model, device))
            }
            _ => AddedPositions::Nothing,
        };
        let token_types = (config.n_token_types > 0).then(|| {
            // A model may have one kind for both texts of a pair.
            let last = config.n_token_types as i32 - 1;
            Ints::new(context.token_types().into_iter().map(|kind| i32::from(kind).min(last)).collect(), device)
        });
        let query_factors = config
            .query_temperature
            .map(|temperature| Rows::new(position::query_factors(&row_positions(), temperature), 1, device));
        let recurrent_rows = config.recurrent.as_ref().map(|_| match &context {
            AttentionContext::Dense(Dense { batch, seq_len, positions, .. }) => {
                RecurrentRows::dense(*batch, *seq_len, positions.as_ref().map(|positions| positions.as_slice()))
            }
            AttentionContext::Paged(step) => step.recurrent_rows(),
        });
        let cross_bias = match &context {
            AttentionContext::Dense(Dense { batch, source: Some(source), .. }) => source.bias(*batch, device),
            AttentionContext::Dense(_) | AttentionContext::Paged(_) => None,
        };
        Self {
            context,
            config,
            masks,
            rotations,
            added,
            token_types,
            query_factors,
            cross_options: config.is_encoder_decoder().then(|| AttentionOptions {
                n_heads: config.n_heads,
                n_kv_heads: config.n_kv_heads,
                head_dim: config.head_dim,
                scale: config.score_scale(),
                softcap: config.attention_softcap,
                sliding_window: None,
                bidirectional: true,
                alibi_slopes: None,
                relative: None,
            }),
            cross_bias,
            lent: [None, None],
            per_layer: None,
            recurrent_rows,
            scratch: BlockScratch::default(),
            routes: None,
        }
    }

    /// Number of rows in the layers.
    pub(crate) fn n_rows(&self) -> usize {
        self.context.n_rows()
    }

    /// The step over a cache, if there is one.
    pub(crate) fn paged_step(&mut self) -> Option<&mut PagedStep<'a>> {
        match &mut self.context {
            AttentionContext::Dense(_) => None,
            AttentionContext::Paged(step) => Some(step),
        }
    }

    /// From now on, keys and values are stored by separate operations that do not read the pools, which are unreadable
    /// after a failed capture.
    pub(crate) fn disable_fused_append(&mut self) {
        if let AttentionContext::Paged(step) = &mut self.context {
            step.sequences.disable_fused_append();
        }
    }

    /// Records the residual stream `x` after `n_blocks` blocks, if it is traced.
    pub(crate) fn record_residual(&mut self, n_blocks: usize, x: &Tensor<2>) {
        if let AttentionContext::Dense(Dense { trace: Some(trace), .. }) = &mut self.context {
            trace.record_residual(n_blocks, x);
        }
    }

    /// The dropout of the tensor at `place`, if the model drops values in this pass.
    pub(crate) fn dropout(&self, place: DropoutPlace) -> Option<Dropout> {
        let seed = self.dropout_seed()?;
        let place = match place {
            DropoutPlace::Embeddings => 0,
            DropoutPlace::Attention(layer) => 1 + 2 * layer,
            DropoutPlace::Mlp(layer) => 2 + 2 * layer,
            DropoutPlace::Cross(layer) => 1 + 2 * self.config.n_layers + layer,
        };
        let probability = self.config.dropout;
        (probability > 0.0).then_some(Dropout { probability, seed, place: place as u32 })
    }

    /// The seed of dropout, if this pass trains.
    pub(crate) fn dropout_seed(&self) -> Option<u64> {
        match &self.context {
            AttentionContext::Dense(dense) => dense.dropout_seed,
            AttentionContext::Paged(_) => None,
        }
    }

    /// The adapters of the step's rows; empty if whole sequences are computed.
    pub(crate) fn adapters(&self) -> Arc<Vec<AdapterRows>> {
        match &self.context {
            AttentionContext::Dense(_) => Arc::default(),
            AttentionContext::Paged(step) => step.adapters.clone(),
        }
    }

    /// The types of the rows' tokens, if the model has token types.
    pub(crate) fn token_types(&self) -> Option<&Ints> {
        self.token_types.as_ref()
    }

    /// Positions that are added to embeddings.
    pub(crate) fn added(&self) -> &AddedPositions {
        &self.added
    }

    /// All inputs of a decoding pass that are uploaded to a GPU, except token ids, and sizes that are equal for passes
    /// with the same launches. `None` if the pass cannot be captured, or the GPU has no attention kernel.
    pub(crate) fn uploads(&self) -> Option<(Vec<Upload<'_>>, Vec<usize>)> {
        let AttentionContext::Paged(step) = &self.context else { return None };
        if !step.sequences.decode() {
            return None;
        }
        let mut uploads = vec![Upload::Ints(step.slots().numbers())];
        let mut sizes = vec![step.slots().host().len()];
        for mask in self.masks.iter().flatten() {
            let (table, table_sizes) = step.sequences.table(&mask.options)?;
            uploads.push(Upload::Ints(table));
            sizes.extend(table_sizes);
        }
        uploads.extend(self.rotations.iter().flatten().map(|rotation| Upload::Rows(rotation.table())));
        uploads.extend(self.query_factors.iter().map(Upload::Rows));
        match &self.added {
            AddedPositions::Nothing => {}
            AddedPositions::Learned(positions) => uploads.push(Upload::Ints(positions)),
            AddedPositions::Sinusoidal(rows) => uploads.push(Upload::Rows(rows)),
        }
        Some((uploads, sizes))
    }

    /// The attention inputs of a whole block, and its scratch memory, if `layer` attends over a cache.
    pub(crate) fn paged(&mut self, layer: usize) -> Option<(PagedAttention<'_>, &mut BlockScratch)> {
        let Self { context, config, masks, rotations, query_factors, cross_options, scratch, .. } = self;
        let AttentionContext::Paged(step) = context else { return None };
        if !config.attends(layer) {
            return None;
        }
        let (pools, slots, sequences, sources) = step.parts(config.kv_layer_of(layer));
        let (options, rotation) = (&mask_of(masks, config, layer).options, rotation_at(rotations, config, layer));
        let query_factors = query_factors.as_ref();
        let sources = sources.zip(cross_options.as_ref());
        Some((PagedAttention { pools, slots, sequences, options, rotation, query_factors, sources }, scratch))
    }

    /// The per-layer input of `layer`, `[n_rows, width]`, if the model has per-layer inputs.
    pub(crate) fn per_layer_input(&self, layer: usize) -> Option<Tensor<2>> {
        let all = self.per_layer.clone()?;
        let ([n_rows, _], width) = (all.dims(), self.config.per_layer_inputs?.width);
        Some(all.slice([0..n_rows, layer * width..(layer + 1) * width]))
    }

    /// Keys and values that later layers attend to.
    pub(crate) fn lent(&mut self) -> &mut [Option<Tensor<2>>; 2] {
        &mut self.lent
    }

    /// Inputs of the recurrent `layer`.
    ///
    /// # Panics
    /// If the model has no recurrent layers.
    pub(crate) fn recurrent(&mut self, layer: usize) -> RecurrentPass<'_> {
        let Some(rows) = &self.recurrent_rows else { unreachable!("a recurrent layer of a model without any") };
        let states = match &mut self.context {
            AttentionContext::Dense(_) => None,
            AttentionContext::Paged(step) => Some(step.states(layer)),
        };
        RecurrentPass { rows, states }
    }

    /// Inputs of cross-attention: the context, its options, and the mask of the sources' padding.
    ///
    /// # Panics
    /// If the model has no encoder.
    pub(crate) fn source(&mut self) -> (&mut AttentionContext<'a>, &AttentionOptions, Option<&Tensor<4>>) {
        let Some(options) = &self.cross_options else {
            unreachable!("attention to a source in a model without an encoder")
        };
        (&mut self.context, options, self.cross_bias.as_ref())
    }

    /// What distances between rows and keys add to the scores of the layers from here on, by the model's numbers.
    pub(crate) fn add_relative(&mut self, relative: &Relative) {
        let (Some(buckets), [Some(mask), _]) = (self.config.positions.buckets(), &mut self.masks) else {
            unreachable!("relative positions without buckets, or with a window")
        };
        let both_ways = self.config.bidirectional;
        let n_heads = mask.options.n_heads;
        let device = relative.device();
        let of = |distances: Vec<isize>| {
            let ids: Vec<i32> =
                distances.into_iter().map(|distance| buckets.bucket(distance, both_ways) as i32).collect();
            relative.of(Ints::new(ids, &device).tensor())
        };
        match &self.context {
            AttentionContext::Dense(Dense { seq_len, .. }) => {
                let rows = 0..*seq_len as isize;
                let distances = rows.clone().flat_map(|query| rows.clone().map(move |key| key - query));
                let bias =
                    of(distances.collect()).reshape([*seq_len, *seq_len, n_heads]).permute([2, 0, 1]).unsqueeze();
                mask.dense_bias = Some(match mask.hidden.clone() {
                    Some(hidden) => bias + hidden,
                    None => bias,
                });
            }
            AttentionContext::Paged(step) => {
                let ends = step.sequences.as_slice().iter().map(|sequence| sequence.start + sequence.rows.len());
                let longest = ends.max().unwrap_or(0).max(1);
                let ahead = if both_ways { longest } else { 1 };
                let distances: Vec<isize> = (1 - longest as isize..ahead as isize).collect();
                let n_distances = distances.len();
                let by_head = of(distances).transpose().into_data().convert::<f32>().try_into_vec();
                let by_head = by_head.unwrap_or_else(|_| unreachable!("just converted"));
                mask.options.relative = Some(Arc::new(RelativeScores::new(by_head, n_distances, longest - 1)));
            }
        }
    }

    /// Attention inputs of `layer`.
    pub(crate) fn layer(&mut self, layer: usize) -> LayerPass<'_, 'a> {
        let Self { context, config, masks, rotations, query_factors, lent, .. } = self;
        LayerPass {
            context,
            mask: mask_of(masks, config, layer),
            rotation: rotation_at(rotations, config, layer),
            query_factors: query_factors.as_ref(),
            kv_layer: config.kv_layer_of(layer),
            lends: config.lends_keys(layer),
            lent: &mut lent[usize::from(config.window_of(layer).is_some())],
        }
    }
}

/// Which keys the rows of `layer` see.
fn mask_of<'a>(masks: &'a [Option<AttentionMask>; 2], config: &GptConfig, layer: usize) -> &'a AttentionMask {
    let of_kind = &masks[usize::from(config.window_of(layer).is_some())];
    of_kind.as_ref().unwrap_or_else(|| unreachable!("`ForwardPass::new` asked every layer"))
}

/// How `layer` rotates, if it does.
fn rotation_at<'a>(rotations: &'a [Option<Rotation>; 2], config: &GptConfig, layer: usize) -> Option<&'a Rotation> {
    config.rope_of(layer)?;
    let [usual, windowed] = rotations;
    windowed.as_ref().filter(|_| config.window_of(layer).is_some()).or(usual.as_ref())
}
