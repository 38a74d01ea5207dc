//! The tensors of a model's files for each parameter. No tensors are read here.

use std::slice;

use super::row_order::RowOrder;
use crate::{
    config::{GatedDeltaNet, GptConfig, LatentAttention, Recurrence},
    gpt::param_specs::ParamSpec,
};

/// One of Hearth's parameters, and the tensors that make it up. The first `{}` is the layer's number, a second one the
/// expert's.
#[derive(Clone, Copy)]
pub(super) struct NameRow {
    path: &'static str,
    tensors: Tensors,
    /// A first dimension of each tensor that the parameter does not have.
    leading: Leading,
    /// The configurations to which this row applies; `None`: all.
    holds: Option<fn(&GptConfig) -> bool>,
}

/// A tensor's name and the rows of the parameter that it holds.
type NamedRows = (&'static str, RowSelection);

#[derive(Clone, Copy)]
enum Leading {
    None,
    One,
    Experts,
}

#[derive(Clone, Copy)]
enum Tensors {
    One(NamedRows),
    /// Stacked along `d_out`.
    Stacked(&'static [NamedRows]),
}

impl NameRow {
    const fn one(path: &'static str, tensor: &'static str, rows: RowSelection) -> Self {
        Self { path, tensors: Tensors::One((tensor, rows)), leading: Leading::None, holds: None }
    }

    /// The row counts only for configurations for which `holds` is true.
    pub(super) const fn only_if(self, holds: fn(&GptConfig) -> bool) -> Self {
        Self { holds: Some(holds), ..self }
    }

    /// Each tensor has the parameters of all experts of a layer: `[n_experts, ...]`.
    pub(super) const fn of_all_experts(self) -> Self {
        Self { leading: Leading::Experts, ..self }
    }

    /// The tensor has a first dimension of 1.
    pub(super) const fn as_one_row(self) -> Self {
        Self { leading: Leading::One, ..self }
    }

    fn tensors(&self) -> &[NamedRows] {
        match &self.tensors {
            Tensors::One(tensor) => slice::from_ref(tensor),
            Tensors::Stacked(tensors) => tensors,
        }
    }
}

/// One tensor of the same shape.
pub(super) const fn same(path: &'static str, tensor: &'static str) -> NameRow {
    NameRow::one(path, tensor, RowSelection::All)
}

/// One matrix, stored as `[d_in, d_out]` (GPT-2's `Conv1D`).
pub(super) const fn transposed(path: &'static str, tensor: &'static str) -> NameRow {
    NameRow::one(path, tensor, RowSelection::Transposed)
}

/// One tensor whose rows are ordered by key head: the key head's queries, its key, its value.
pub(super) const fn by_key_head(path: &'static str, tensor: &'static str) -> NameRow {
    NameRow::one(path, tensor, RowSelection::ByKeyHead)
}

/// The rows of one matrix after its first `n_rows`, which are not used and are saved as zeros.
pub(super) const fn after(n_rows: usize, path: &'static str, tensor: &'static str) -> NameRow {
    NameRow::one(path, tensor, RowSelection::After(n_rows))
}

/// One tensor with the rows, and the order, of `rows`.
pub(super) const fn ordered(rows: RowSelection, path: &'static str, tensor: &'static str) -> NameRow {
    NameRow::one(path, tensor, rows)
}

/// Several tensors, stacked along `d_out`.
pub(super) const fn stacked(path: &'static str, tensors: &'static [NamedRows]) -> NameRow {
    NameRow { path, tensors: Tensors::Stacked(tensors), leading: Leading::None, holds: None }
}

/// The rows of a parameter that a tensor holds, and their order.
#[derive(Clone, Copy)]
pub(super) enum RowSelection {
    All,
    Queries,
    /// Keys, or values that have a projection.
    KeysOrValues,
    /// Values; empty in layers whose values are their keys.
    Values,
    /// Half of a gated MLP's first matrix.
    Half,
    /// Queries in which the two dimensions that rotate together are adjacent, head by head.
    InterleavedQueries,
    /// Keys laid out like that.
    InterleavedKeys,
    /// Queries that are rotated by the negative angle.
    ReversedQueries,
    /// Keys that rotate like that.
    ReversedKeys,
    /// See [`transposed`].
    Transposed,
    /// See [`by_key_head`].
    ByKeyHead,
    /// See [`after`].
    After(usize),
    /// One value of a vector, as a tensor of one.
    Value,
    /// One value of a vector, as a tensor without dimensions.
    Scalar,
    /// All, in a tensor without the dimension of 1.
    Squeezed,
    /// The logarithms of the tensor's values, negated.
    LogOfNegated,
    /// As [`LogOfNegated`](Self::LogOfNegated), for a tensor with a last dimension of 1.
    ColumnOfNegated,
    /// All, in a tensor with a last dimension of 1.
    Column,
    /// All, in a tensor that has the norm's groups in Mamba-2 as rows.
    NormGroups,
    /// Queries and their gates, head by head.
    GatedQueries,
    /// Queries, keys and values of a gated delta net.
    DeltaQkv,
    /// The gates of a gated delta net's values.
    DeltaGates,
    /// [`DeltaQkv`](Self::DeltaQkv) and [`DeltaGates`](Self::DeltaGates), key head by key head.
    DeltaByKeyHead,
    /// The inputs of a gated delta net's betas and decays, key head by key head.
    BetasByKeyHead,
    /// An expert's gate and up projection, in alternating rows.
    Pairs,
    /// As [`Pairs`](Self::Pairs), transposed.
    TransposedPairs,
    /// Queries of latent attention.
    LatentQueries,
    /// The projection to the latent of keys and values, followed by the rotated part of keys.
    LatentDown,
    /// The projection from the latent to keys and values, head by head.
    LatentUp,
    /// The part of [`LatentUp`](Self::LatentUp) for keys, with a transposed matrix for each head.
    LatentKeys,
    /// The part of [`LatentUp`](Self::LatentUp) for values, with a matrix for each head.
    LatentValues,
    /// Weights of queries, a row for each head, laid out as [`InterleavedQueries`](Self::InterleavedQueries).
    RowsOfQueries,
    /// Weights of keys like that.
    RowsOfKeys,
    /// Norm weights of queries, a tensor for each head; a second `{}` in the name is the head's number.
    EachQueryHead,
    /// Weights of keys like that.
    EachKeyHead,
    /// Queries, values and keys of the first of four shards of the model, then of the others.
    Shards,
}

impl RowSelection {
    /// The number of rows, if the parameter, which is one of `layer`, has `n`.
    fn count(self, config: &GptConfig, layer: usize, n: usize) -> usize {
        let [k_width, v_width] = config.projected_kv_widths(layer);
        match self {
            Self::All | Self::Transposed | Self::ByKeyHead | Self::After(_) => n,
            Self::LatentQueries | Self::LatentDown | Self::LatentUp => n,
            Self::LatentKeys => n - config.value_width_of(layer),
            Self::LatentValues => config.value_width_of(layer),
            Self::Queries | Self::InterleavedQueries | Self::ReversedQueries => config.q_width_of(layer),
            Self::KeysOrValues | Self::InterleavedKeys | Self::ReversedKeys => k_width,
            Self::Values => v_width,
            Self::RowsOfQueries | Self::RowsOfKeys | Self::EachQueryHead | Self::EachKeyHead | Self::Shards => n,
            Self::Half => n / 2,
            Self::Value | Self::Scalar => 1,
            Self::DeltaByKeyHead | Self::BetasByKeyHead | Self::Squeezed | Self::LogOfNegated => n,
            Self::ColumnOfNegated | Self::Column | Self::NormGroups | Self::Pairs | Self::TransposedPairs => n,
            Self::GatedQueries => config.gate_width_of(layer) + config.q_width_of(layer),
            Self::DeltaQkv => delta_net(config).map_or(n, |net| net.qkv_width()),
            Self::DeltaGates => delta_net(config).map_or(n, |net| net.value_width()),
        }
    }

    fn order(self, config: &GptConfig, n: usize) -> RowOrder {
        match self {
            Self::All | Self::Queries | Self::KeysOrValues | Self::Values | Self::Half | Self::Value => RowOrder::Same,
            Self::RowsOfQueries | Self::RowsOfKeys => RowOrder::interleaved_rows(config),
            Self::EachQueryHead | Self::EachKeyHead => RowOrder::Same,
            Self::Shards => RowOrder::shards(config),
            Self::Scalar => RowOrder::Scalar,
            Self::InterleavedQueries | Self::InterleavedKeys => RowOrder::interleaved(config),
            Self::ReversedQueries | Self::ReversedKeys => RowOrder::reversed(config),
            Self::Transposed => RowOrder::Transposed,
            Self::ByKeyHead => RowOrder::by_key_head(config),
            Self::After(n_rows) => RowOrder::After(n_rows),
            Self::Squeezed => RowOrder::Squeezed,
            Self::LogOfNegated => RowOrder::LogOfNegated { is_column: false },
            Self::ColumnOfNegated => RowOrder::LogOfNegated { is_column: true },
            Self::Column => RowOrder::Folded { n_rows: n },
            Self::NormGroups => RowOrder::Folded { n_rows: n_groups(config) },
            Self::GatedQueries => RowOrder::gated_queries(config),
            Self::DeltaQkv | Self::DeltaGates => RowOrder::Same,
            Self::DeltaByKeyHead => delta_net(config).map_or(RowOrder::Same, RowOrder::delta_by_key_head),
            Self::BetasByKeyHead => delta_net(config).map_or(RowOrder::Same, RowOrder::delta_gates_by_key_head),
            Self::Pairs => RowOrder::pairs(expert_width(config)),
            Self::TransposedPairs => RowOrder::TransposedPairs { n_pairs: expert_width(config) },
            Self::LatentQueries => of_latent(config, |latent| RowOrder::latent_queries(config, latent)),
            Self::LatentDown => of_latent(config, RowOrder::latent_down),
            Self::LatentUp => of_latent(config, |latent| RowOrder::latent_up(config, latent)),
            Self::LatentKeys => RowOrder::HeadColumns { n_heads: config.n_heads },
            Self::LatentValues => RowOrder::Heads { n_heads: config.n_heads },
        }
    }
}

impl RowSelection {
    /// The number of tensors, if each head has one.
    fn n_tensors(self, config: &GptConfig) -> Option<usize> {
        match self {
            Self::EachQueryHead => Some(config.n_heads),
            Self::EachKeyHead => Some(config.n_kv_heads),
            _ => None,
        }
    }
}

/// The order that `order` gives for a model with latent attention.
fn of_latent(config: &GptConfig, order: impl FnOnce(&LatentAttention) -> RowOrder) -> RowOrder {
    config.latent.as_ref().map_or(RowOrder::Same, order)
}

/// Groups of the norm after a Mamba-2 layer.
fn n_groups(config: &GptConfig) -> usize {
    match config.recurrent.as_ref().map(|recurrent| recurrent.recurrence) {
        Some(Recurrence::Mamba2(mamba)) => mamba.n_groups,
        _ => 1,
    }
}

/// The gated delta net of a model that has one.
fn delta_net(config: &GptConfig) -> Option<&GatedDeltaNet> {
    match &config.recurrent.as_ref()?.recurrence {
        Recurrence::GatedDelta(net) => Some(net),
        Recurrence::ShortConv(_) | Recurrence::Mamba2(_) => None,
    }
}

/// Width inside an expert of a model that has some.
fn expert_width(config: &GptConfig) -> usize {
    config.experts.as_ref().map_or(0, |experts| experts.d_ff)
}

/// How the files of one architecture name their tensors.
#[derive(Clone, Copy)]
pub(super) struct TensorNames {
    /// The architecture, for messages.
    pub(super) class: &'static str,
    /// `None`: every parameter is a tensor of the same name. If several rows for one parameter apply, the first whose
    /// tensors all exist is used, or the first row if none has all.
    pub(super) rows: Option<&'static [&'static [NameRow]]>,
    /// Names may come without this prefix: base models were saved that way. Base models' names may also come with it.
    pub(super) base_prefix: &'static str,
    /// Prefix of the names of `rows` in files, except for the head.
    pub(super) body_prefix: &'static str,
    /// Files are saved without `base_prefix`, which the names of `rows` may have.
    pub(super) is_base: bool,
}

/// A range of a parameter's rows, and the tensor that holds it.
pub(super) struct TensorPart {
    pub(super) name: String,
    pub(super) n_rows: usize,
    pub(super) order: RowOrder,
    /// The part of the tensor along its first dimension, if the tensor has the parameters of several experts.
    pub(super) expert: Option<OfExpert>,
}

/// One of the equal parts of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OfExpert {
    pub(super) number: usize,
    pub(super) n_experts: usize,
}

impl TensorPart {
    /// The shape of the tensor. `spec` is the whole parameter.
    pub(super) fn shape(&self, spec: &ParamSpec) -> Vec<usize> {
        let rest = &spec.shape[1..];
        let own = match self.order {
            order if order.is_transposed() => [rest, &[self.n_rows]].concat(),
            RowOrder::Scalar => Vec::new(),
            RowOrder::Squeezed => [&[self.n_rows], &rest[1..]].concat(),
            RowOrder::After(n_before) => [&[n_before + self.n_rows], rest].concat(),
            RowOrder::Heads { n_heads } => [&[n_heads, self.n_rows / n_heads], rest].concat(),
            RowOrder::HeadColumns { n_heads } => [&[n_heads], rest, &[self.n_rows / n_heads]].concat(),
            RowOrder::InterleavedRows { head_dim, .. } => vec![self.n_rows / head_dim.max(1), head_dim],
            RowOrder::LogOfNegated { is_column: true } => vec![self.n_rows, 1],
            RowOrder::Folded { n_rows } => vec![n_rows, self.n_rows / n_rows.max(1)],
            _ => [&[self.n_rows], rest].concat(),
        };
        self.expert.iter().map(|expert| expert.n_experts).chain(own).collect()
    }
}

/// Prefixes of the paths of the layers that turn hidden states into predictions.
const HEAD_PATHS: [&str; 2] = ["mlm_head.", "lm_head."];

impl TensorNames {
    /// The names that files may have for `name`.
    pub(super) fn spellings(&self, name: &str) -> [String; 3] {
        let short = name.strip_prefix(self.base_prefix).unwrap_or(name);
        [name.to_owned(), short.to_owned(), format!("{}{name}", self.base_prefix)]
    }

    /// The tensors of the parameter `spec` in files that have the tensors for which `has` is true.
    pub(super) fn parts(&self, spec: &ParamSpec, config: &GptConfig, has: &dyn Fn(&str) -> bool) -> Vec<TensorPart> {
        let Some(rows) = self.rows else {
            return vec![TensorPart {
                name: spec.path.clone(),
                n_rows: spec.shape[0],
                order: RowOrder::Same,
                expert: None,
            }];
        };
        let (path, numbers) = without_numbers(&spec.path);
        let prefix = if HEAD_PATHS.iter().any(|head| path.starts_with(head)) { "" } else { self.body_prefix };
        let is_of_encoder = path.starts_with("encoder.");
        let config = config.encoder.as_deref().filter(|_| is_of_encoder).unwrap_or(config);
        let name = |pattern: &str| {
            let pattern = Some(pattern)
                .filter(|_| self.is_base)
                .and_then(|name| name.strip_prefix(self.base_prefix))
                .unwrap_or(pattern);
            numbers.iter().fold(format!("{prefix}{pattern}"), |name, number| name.replacen("{}", number, 1))
        };
        let candidates = || {
            let of_path = rows.iter().copied().flatten().filter(|row| row.path == path);
            of_path.filter(|row| row.holds.is_none_or(|holds| holds(config)))
        };
        let layer = numbers.first().and_then(|number| number.parse().ok()).unwrap_or_default();
        let count = |rows: RowSelection| rows.count(config, layer, spec.shape[0]);
        let is_there =
            |row: &&NameRow| row.tensors().iter().all(|(pattern, rows)| has(&name(pattern)) || count(*rows) == 0);
        let Some(row) = candidates().find(is_there).or_else(|| candidates().next()) else {
            // An architecture that can have this parameter names it, and the configuration is one of that architecture.
            unreachable!("`{}` has no name for `{path}`", self.class)
        };
        let part = |&(pattern, rows): &NamedRows| TensorPart {
            name: name(pattern),
            n_rows: count(rows),
            order: rows.order(config, spec.shape[0]),
            expert: match row.leading {
                Leading::None => None,
                Leading::One => Some(OfExpert { number: 0, n_experts: 1 }),
                Leading::Experts => Some(OfExpert {
                    number: numbers.last().and_then(|number| number.parse().ok()).unwrap_or_default(),
                    n_experts: config.experts.as_ref().map_or(1, |experts| experts.n_experts),
                }),
            },
        };
        let parts = |tensor: &NamedRows| {
            let TensorPart { name, n_rows, order, expert } = part(tensor);
            let n_tensors = tensor.1.n_tensors(config).unwrap_or(1);
            let of_head = move |head: usize| {
                let name = name.replacen("{}", &head.to_string(), 1);
                TensorPart { name, n_rows: n_rows / n_tensors, order, expert }
            };
            (0..n_tensors).map(of_head)
        };
        row.tensors().iter().flat_map(parts).filter(|part| part.n_rows > 0).collect()
    }

    /// Whether there are names for the parameter `spec`.
    pub(super) fn knows(&self, spec: &ParamSpec, config: &GptConfig) -> bool {
        let (path, _) = without_numbers(&spec.path);
        self.rows.is_none_or(|rows| {
            let mut of_path = rows.iter().copied().flatten().filter(|row| row.path == path);
            of_path.any(|row| row.holds.is_none_or(|holds| holds(config)))
        })
    }

    /// Whether files have a tensor of the part whose parameters' paths begin with `part`; `has` is whether a tensor
    /// exists.
    pub(super) fn has_part(&self, part: &str, has: impl Fn(&str) -> bool) -> bool {
        self.rows.is_none_or(|rows| {
            let mut of_part = rows.iter().copied().flatten().filter(|row| row.path.starts_with(part));
            of_part.any(|row| row.tensors().iter().any(|(name, _)| has(name)))
        })
    }

    /// The name of the output matrix, if it is the embedding. Files may have it a second time under this name, or only under it.
    pub(super) fn tied_copy(&self, config: &GptConfig) -> Option<&'static str> {
        let head = |row: &NameRow| match row.tensors {
            Tensors::One((name, _)) if row.path == "lm_head.weight" => Some(name),
            _ => None,
        };
        self.rows?.iter().copied().flatten().find_map(head).filter(|_| config.tie_embeddings)
    }
}

/// `blocks.3.attn.out.weight` to `blocks.{}.attn.out.weight` and `3`.
fn without_numbers(path: &str) -> (String, Vec<&str>) {
    let mut numbers = Vec::new();
    let part = |part| match str::bytes(part).all(|byte| byte.is_ascii_digit()) {
        true => {
            numbers.push(part);
            "{}"
        }
        false => part,
    };
    let parts: Vec<&str> = path.split('.').map(part).collect();
    (parts.join("."), numbers)
}
