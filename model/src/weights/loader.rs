//! Loads parameters from the tensors of files, Hugging Face's or GGUF's, in the form in which they are stored if the
//! device can compute with it.

use std::collections::HashSet;

use burn::tensor::{Device, TensorData};
use rayon::prelude::*;

use super::{
    files::{minima_of, scales_of},
    ggml_types::ElementType,
    larger_matrices::LargerMatrices,
    packed::{PackedMatrices, PackedMatrix},
    passed_over::{is_copy, is_encoder_head, is_no_parameter, is_of_predicting_layer, is_of_shared_keys, shown},
    row_order::RowOrder,
    tensor_names::{TensorNames, TensorPart},
    tensor_table::{StoredTensor, TensorTable, without_leading_ones},
};
use crate::{
    config::GptConfig,
    error::{Error, Result},
    files::byte_size::ByteSize,
    gpt::{
        Gpt, ParamData, ParamSpec,
        lora::{LoraValues, MatrixUpdate},
    },
    ops::{
        BLOCK_SIZE, Dtype, MatrixRows, QuantizedBlock, Weight,
        k_quants::{BlockRows, GroupRun, K_BLOCK, KBlock, MxBlock},
    },
};

/// Blocks that each parallel task checks for infinite and NaN values.
const PIECE: usize = 1 << 12;

/// The parameters to load, and their form.
pub(super) struct LoadPlan<'a> {
    pub(super) names: TensorNames,
    /// Matrices that other programs quantized; their tensors are not in the table.
    pub(super) packed: Option<&'a PackedMatrices<'a>>,
    pub(super) config: &'a GptConfig,
    /// The dtype of matrices; `None`: each keeps the dtype of the file.
    pub(super) dtype: Option<Dtype>,
    /// Without a `dtype`: whether f16 is kept, and not widened to f32.
    pub(super) keeps_f16: bool,
    pub(super) device: &'a Device,
    /// An adapter to add to the matrices.
    pub(super) merged: Option<&'a LoraValues>,
}

/// Builds the model from the tensors of `table`.
///
/// # Errors
/// [`Error::Tensor`] with the tensor that is missing, surplus, or of the wrong shape or type.
pub(super) fn load(table: &TensorTable<'_>, plan: &LoadPlan<'_>) -> Result<Gpt> {
    load_by(table, plan, |dtype, read| Gpt::from_params(plan.config, dtype, plan.device, read))
}

/// Calls `make` with a dtype and a function that loads parameters from `table`; errors as in [`load`].
pub(super) fn load_by<'t, T>(
    table: &'t TensorTable<'_>,
    plan: &'t LoadPlan<'t>,
    make: impl FnOnce(Dtype, &mut dyn FnMut(&ParamSpec) -> Result<ParamData<'t>>) -> Result<T>,
) -> Result<T> {
    let LoadPlan { names, config, dtype, .. } = *plan;
    let mut loader =
        Loader { table, plan, used: HashSet::new(), not_finite: Vec::new(), larger: LargerMatrices::default() };
    let made = make(dtype.unwrap_or_default(), &mut |spec| {
        // Frees the pages of the parameters before; the rows of this one are read later.
        table.release();
        loader.param(spec)
    })?;
    if !loader.not_finite.is_empty() {
        let (path, tensors) = (table.path().display(), loader.not_finite.join("`, `"));
        tracing::warn!(
            "`{path}`: these tensors have infinite or NaN values, so the model's output will too: `{tensors}`"
        );
    }
    loader.larger.log(table.path());
    let tied_copy = names.tied_copy(config).and_then(|name| table.get(name)).map(|copy| copy.name);
    // The head that predicts masked tokens from an encoder's hidden states is not computed.
    let is_head = |tensor: &StoredTensor<'_>| config.bidirectional && is_encoder_head(tensor.name);
    let is_other = |tensor: &StoredTensor<'_>| is_head(tensor) || is_copy(tensor, table, config);
    let is_surplus = |tensor: &&StoredTensor<'_>| !loader.used.contains(tensor.name) && tied_copy != Some(tensor.name);
    let has = |name: &str| table.get(name).is_some() || plan.packed.is_some_and(|packed| packed.contains_key(name));
    let is_unread = |name: &str| is_of_predicting_layer(name, config.n_layers, has) || is_of_shared_keys(name, config);
    let is_none = |tensor: &&StoredTensor<'_>| is_no_parameter(tensor) || is_other(tensor) || is_unread(tensor.name);
    let (no_parameters, parameters): (Vec<_>, Vec<_>) = table.iter().filter(is_surplus).partition(is_none);
    let is_part = |name: &str| loader.used.contains(name) || names.tied_copy(config) == Some(name) || is_unread(name);
    let surplus = plan.packed.into_iter().flatten().filter(|(name, _)| !is_part(name));
    if let Some((_, surplus)) = surplus.min_by_key(|(name, _)| *name) {
        return Err(surplus.error(not_part_of(&names, table)).with_hint(SURPLUS));
    }
    if let Some(surplus) = parameters.iter().min_by_key(|tensor| tensor.name) {
        return Err(surplus.error(not_part_of(&names, table)).with_hint(SURPLUS));
    }
    if !no_parameters.is_empty() {
        let names = shown(no_parameters.iter().map(|tensor| tensor.name).collect());
        tracing::info!("`{}`: passed over, because they are no parameters: {names}", table.path().display());
    }
    Ok(made)
}

/// The hint for a tensor that is part of no parameter.
const SURPLUS: &str = "without this tensor the model would give wrong results, so it is rejected";

fn not_part_of(names: &TensorNames, table: &TensorTable<'_>) -> String {
    format!("is not part of `{}` as {} describes it", names.class, table.asked_by())
}

struct Loader<'t, 'a> {
    table: &'t TensorTable<'a>,
    plan: &'t LoadPlan<'t>,
    /// Names of tensors that are part of parameters.
    used: HashSet<&'t str>,
    /// Names of tensors with infinite or NaN values.
    not_finite: Vec<&'t str>,
    larger: LargerMatrices,
}

impl<'t, 'a> Loader<'t, 'a> {
    fn param(&mut self, spec: &ParamSpec) -> Result<ParamData<'t>> {
        let LoadPlan { names, config, dtype, .. } = *self.plan;
        let has = |name: &str| self.get(name).is_some() || self.packed(name).is_some();
        let parts = names.parts(spec, config, &has);
        if spec.path == "lm_head.bias" && config.is_encoder_decoder() && parts.iter().all(|part| !has(&part.name)) {
            // As in transformers: files may leave it out.
            return Ok(TensorData::zeros::<f32, _>(spec.shape.as_slice()).into());
        }
        let path = spec.path.strip_suffix(".weight").unwrap_or_default();
        let update = self.plan.merged.and_then(|merged| merged.0.get(path));
        if let ([TensorPart { name, order: RowOrder::Same, expert: None, .. }], &[d_out, d_in]) =
            (&parts[..], &spec.shape[..])
            && let Some(numbers) = self.table.get(name).filter(|tensor| tensor.is_quantized())
        {
            return match update {
                Some(_) => Err(cannot_merge(&Source::Plain(numbers.clone(), ElementType::F32))),
                None => self.quantized(numbers, [d_out, d_in]),
            };
        }
        let param = self.stored(spec, parts)?;
        if let (Some(update), &[d_out, d_in]) = (update, &spec.shape[..]) {
            return param.merged([d_out, d_in], update);
        }
        match (&spec.shape[..], dtype) {
            (&[d_out, d_in], None) => {
                let in_file = param.parts.iter().map(|part| part.source.n_bytes()).sum();
                let is_quantized = param.parts.iter().any(|part| part.source.is_quantized());
                let data = param.into_nearest([d_out, d_in], self.plan)?;
                if is_quantized {
                    let in_memory = match &data {
                        ParamData::Placed(weight) => weight.n_bytes(),
                        _ => d_out * d_in * size_of::<f32>(),
                    };
                    self.larger.add(in_file, in_memory);
                }
                Ok(data)
            }
            (&[d_out, d_in], Some(_)) => Ok(ParamData::Rows(param.into_rows([d_out, d_in]))),
            (shape, _) => Ok(TensorData::new(param.vector(), shape).into()),
        }
    }

    /// The tensor `name`, with or without the prefix of the class.
    fn get(&self, name: &str) -> Option<&'t StoredTensor<'a>> {
        self.plan.names.spellings(name).into_iter().find_map(|name| self.table.get(&name))
    }

    /// The packed matrix `name`, with or without the prefix of the class, and the name that it has.
    fn packed(&self, name: &str) -> Option<(&'t str, &'t PackedMatrix<'t>)> {
        let packed = self.plan.packed?;
        let found = self.plan.names.spellings(name).into_iter().find_map(|name| packed.get_key_value(&name));
        found.map(|(name, matrix)| (name.as_str(), matrix))
    }

    /// The error for a part of the parameter `spec` that no file has.
    fn missing(&self, spec: &ParamSpec, part: &TensorPart) -> Error {
        let error = self.table.missing(&part.name);
        match spec.path.as_str() {
            "lm_head.weight" => error.with_hint(
                "models that only turn texts into vectors have no output matrix, and are not supported; if it is the \
                 embedding, set `\"tie_word_embeddings\": true`",
            ),
            _ => error,
        }
    }

    /// The output matrix, if `spec` is the embedding, the two are tied, and the files have it.
    fn tied_head(&self, spec: &ParamSpec) -> Option<&'t StoredTensor<'a>> {
        let name = self.plan.names.tied_copy(self.plan.config).filter(|_| spec.path == "embed.weight");
        name.and_then(|name| self.get(name))
    }

    /// A matrix in Hearth's own blocks: its numbers, scales and minima are separate tensors.
    fn quantized(&mut self, numbers: &'t StoredTensor<'a>, dims: [usize; 2]) -> Result<ParamData<'t>> {
        let scales = self.table.require(&scales_of(numbers.name))?;
        let minima = match self.table.get(&minima_of(numbers.name)) {
            // Without minima, 4-bit numbers would be taken for q4.
            None if self.plan.dtype.is_some_and(Dtype::has_minima) && !numbers.is_q8() => {
                return Err(self.table.missing(&minima_of(numbers.name)));
            }
            minima => minima,
        };
        let (dtype, rows) = numbers.to_blocks(scales, minima, dims)?;
        self.used.insert(numbers.name);
        for factors in [Some(scales), minima].into_iter().flatten() {
            self.check_finite(factors, factors.element()?);
            self.used.insert(factors.name);
        }
        Weight::from_blocks(&rows, dtype, self.plan.device).map(ParamData::Placed)
    }

    /// The tensors of a parameter. All shapes are checked before anything is allocated.
    fn stored(&mut self, spec: &ParamSpec, parts: Vec<TensorPart>) -> Result<StoredParam<'t>> {
        let find = |part: &TensorPart| {
            if let Some((name, matrix)) = self.packed(&part.name) {
                matrix.require_shape(&part.shape(spec))?;
                return match part.order.is_transposed() || matches!(part.order, RowOrder::HeadColumns { .. }) {
                    true => Err(matrix.error("has its rows as columns, which is supported for floats only")),
                    false => Ok((name, Source::Packed(matrix))),
                };
            }
            let tensor = self.get(&part.name).or_else(|| self.tied_head(spec));
            let tensor = tensor.ok_or_else(|| self.missing(spec, part))?;
            tensor.require_shape(&part.shape(spec))?;
            let element = tensor.element()?;
            let tensor = match part.expert {
                Some(expert) => tensor.of_expert(expert),
                None => tensor.clone(),
            };
            Ok((tensor.name, Source::Plain(tensor, element)))
        };
        let sources = parts.iter().map(find).collect::<Result<Vec<_>>>()?;
        if let ("embed.weight", [(_, Source::Plain(embed, _))]) = (spec.path.as_str(), &sources[..]) {
            self.check_tied_copy(embed)?;
        }
        let stored = |(TensorPart { n_rows, order, .. }, (name, source)): (TensorPart, (&'t str, Source<'t>))| {
            self.used.insert(name);
            match &source {
                Source::Plain(tensor, element) => self.check_finite(tensor, *element),
                Source::Packed(matrix) if !matrix.is_finite() => self.not_finite.push(name),
                Source::Packed(_) => {}
            }
            StoredPart { source, n_rows, order }
        };
        let parts = parts.into_iter().zip(sources).map(stored).collect();
        Ok(StoredParam { parts })
    }

    /// Rejects a file that has both the embedding and a different output matrix although they are tied: versions of
    /// transformers differ in which of the two they use.
    fn check_tied_copy(&self, embed: &StoredTensor<'_>) -> Result<()> {
        let copy = self.plan.names.tied_copy(self.plan.config).and_then(|name| self.table.get(name));
        match copy {
            Some(copy) if !copy.has_values_of(embed)? => Err(copy
                .error(format!("differs from `{}`, but `config.json` has `tie_word_embeddings`", embed.name))
                .with_hint("if the model has two separate matrices, set `\"tie_word_embeddings\": false`")),
            _ => Ok(()),
        }
    }

    fn check_finite(&mut self, tensor: &StoredTensor<'t>, element: ElementType) {
        let pieces = tensor.bytes.par_chunks(element.block_bytes() * PIECE);
        if !pieces.all(|bytes| element.is_finite(bytes)) && self.not_finite.last() != Some(&tensor.name) {
            self.not_finite.push(tensor.name);
        }
    }
}

/// A parameter that is not read yet.
struct StoredParam<'a> {
    parts: Vec<StoredPart<'a>>,
}

/// The rows of a parameter that are from one tensor.
struct StoredPart<'t> {
    source: Source<'t>,
    n_rows: usize,
    order: RowOrder,
}

/// A source of a parameter's rows.
enum Source<'t> {
    /// A tensor of this type, or an expert's part of one.
    Plain(StoredTensor<'t>, ElementType),
    Packed(&'t PackedMatrix<'t>),
}

impl Source<'_> {
    /// The dtype that represents the values exactly, if any does.
    fn dtype(&self) -> Option<Dtype> {
        match self {
            Self::Plain(_, element) => Some(element.dtype()),
            Self::Packed(matrix) => matrix.dtype(),
        }
    }

    fn is_quantized(&self) -> bool {
        match self {
            Self::Plain(_, element) => element.dtype().is_quantized(),
            Self::Packed(_) => true,
        }
    }

    /// Bytes in the file.
    fn n_bytes(&self) -> usize {
        match self {
            Self::Plain(tensor, _) => tensor.bytes.len(),
            Self::Packed(matrix) => matrix.n_bytes(),
        }
    }

    fn error(&self, what: impl Into<String>) -> Error {
        match self {
            Self::Plain(tensor, _) => tensor.error(what),
            Self::Packed(matrix) => matrix.error(what),
        }
    }

    /// Row `row`, of `d_in` values, in blocks of `dtype`.
    fn small_blocks(&self, row: usize, d_in: usize, dtype: Dtype, out: &mut [QuantizedBlock]) {
        match self {
            Self::Plain(tensor, element) => element.small_blocks(bytes_of_row(tensor, *element, row, d_in), dtype, out),
            Self::Packed(matrix) => matrix.small_blocks(row, dtype, out),
        }
    }
}

/// Row `row` of a tensor whose rows have `width` values.
fn bytes_of_row<'t>(tensor: &'t StoredTensor<'_>, element: ElementType, row: usize, width: usize) -> &'t [u8] {
    let n_bytes = element.bytes_of(width);
    &tensor.bytes[row * n_bytes..][..n_bytes]
}

impl<'a> StoredParam<'a> {
    /// The values of a parameter that is no matrix.
    fn vector(&self) -> Vec<f32> {
        let values = |part: &StoredPart<'_>| {
            let Source::Plain(tensor, element) = &part.source else { unreachable!("packed are matrices") };
            // A vector is one row to its tensor, which may have blocks.
            let mut stored = vec![0.0; tensor.shape.iter().product()];
            element.decode(tensor.bytes, &mut stored);
            let width = match part.order {
                RowOrder::Folded { .. } | RowOrder::InterleavedRows { .. } => 1,
                _ => without_leading_ones(&tensor.shape).iter().skip(1).product::<usize>(),
            };
            if let RowOrder::LogOfNegated { .. } = part.order {
                stored.iter_mut().for_each(|value| *value = (-*value).ln());
            }
            (0..part.n_rows).flat_map(|n| stored[part.order.place(n) * width..][..width].to_vec()).collect::<Vec<_>>()
        };
        self.parts.iter().flat_map(values).collect()
    }

    /// In f32.
    fn into_rows(self, dims: [usize; 2]) -> MatrixRows<'a, f32> {
        MatrixRows::new(dims, dims[1], move |row, out| {
            let (part, row) = place(&self.parts, row);
            part.decode(row, out);
        })
    }

    /// In f32, plus an adapter's update.
    fn merged<'t>(self, dims: [usize; 2], update: &'t MatrixUpdate) -> Result<ParamData<'t>>
    where
        'a: 't,
    {
        if let Some(part) = self.parts.iter().find(|part| part.source.is_quantized()) {
            return Err(cannot_merge(&part.source));
        }
        Ok(ParamData::Rows(MatrixRows::new(dims, dims[1], move |row, out| {
            let (part, of_tensor) = place(&self.parts, row);
            part.decode(of_tensor, out);
            update.add_to_row(row, out);
        })))
    }

    /// The parts without conversion, if all are quantized, and some in a dtype that occurs only in files. Parts of
    /// different dtypes are separate matrices, each of which must fill whole panels of 32 rows.
    fn as_blocks(&self, d_in: usize) -> Option<Vec<(Dtype, BlockRows<'_>)>> {
        let dtype = |part: &StoredPart<'_>| part.source.dtype().unwrap_or_default();
        let is_quantized = self.parts.iter().all(|part| dtype(part).is_quantized());
        if !is_quantized || !self.parts.iter().any(|part| dtype(part).is_from_files()) {
            return None;
        }
        let layout = |part: &StoredPart<'a>| match part.source {
            Source::Packed(matrix) => matrix.layout(),
            Source::Plain(..) => None,
        };
        // Blocks of 8-bit floats need whole rows of their matrix, in its order.
        let is_fp8 = |part: &StoredPart<'a>| dtype(part) == Dtype::Fp8;
        let is_reordered = |part: &StoredPart<'a>| is_fp8(part) && part.order != RowOrder::Same;
        if self.parts.iter().any(|part| is_reordered(part) || part.has_columns()) {
            return None;
        }
        let are_alike = |one: &_, other: &_| dtype(one) == dtype(other) && layout(one) == layout(other) && !is_fp8(one);
        let of_one_kind = self.parts.chunk_by(are_alike);
        let matrices: Vec<_> = of_one_kind.map(|parts| (dtype(&parts[0]), block_rows(parts, d_in))).collect();
        let are_whole = matrices.iter().all(|(_, matrix)| matrix.dims()[0].is_multiple_of(BLOCK_SIZE));
        (matrices.len() == 1 || are_whole).then_some(matrices)
    }

    /// A matrix in the form nearest to the file's that the device computes with.
    fn into_nearest(self, dims: [usize; 2], plan: &LoadPlan<'_>) -> Result<ParamData<'a>> {
        let (d_in, device) = (dims[1], plan.device);
        if let Some(part) = self.parts.iter().find(|part| part.source.dtype().is_none()) {
            return Err(needs_dtype(&part.source, plan.packed));
        }
        let dtype = self.parts.iter().filter_map(|part| part.source.dtype()).reduce(Dtype::wider).unwrap_or_default();
        if Dtype::Q4K.is_for(device)
            && let Some(parts) = self.as_blocks(d_in)
        {
            return Ok(ParamData::Placed(Weight::from_parts(&parts)));
        }
        // Other programs' formats are not rounded without being asked, where the CPU could do without.
        let is_packed = |part: &&StoredPart<'_>| matches!(part.source, Source::Packed(_));
        if let Some(part) = self.parts.iter().find(is_packed)
            && dtype.is_from_files()
            && dtype.is_for(device)
        {
            return Err(needs_dtype(&part.source, plan.packed));
        }
        let dtype = dtype.stored_as();
        let has_columns = self.parts.iter().any(StoredPart::has_columns);
        let dtype = if dtype.is_quantized() && has_columns { Dtype::F32 } else { dtype };
        if dtype.is_quantized() && dtype.is_for(device) {
            let read = move |row, out: &mut [QuantizedBlock]| {
                let (part, row) = place(&self.parts, row);
                part.source.small_blocks(row, d_in, dtype, out);
            };
            let rows = MatrixRows::new(dims, d_in.div_ceil(BLOCK_SIZE), read);
            return Weight::from_blocks(&rows, dtype, device).map(ParamData::Placed);
        }
        let is_kept = dtype.is_for(device) && (plan.keeps_f16 || dtype != Dtype::F16);
        let rows = self.into_rows(dims);
        if !is_kept || dtype == Dtype::F32 {
            return Ok(ParamData::Rows(rows));
        }
        Weight::from_rows(&rows, dtype, device).map(ParamData::Placed)
    }
}

/// The blocks of parts of one dtype, with their exact values.
fn block_rows<'p>(parts: &'p [StoredPart<'_>], d_in: usize) -> BlockRows<'p> {
    let dims = [parts.iter().map(|part| part.n_rows).sum(), d_in];
    let dtype = parts[0].source.dtype().unwrap_or_default();
    match parts[0].source {
        Source::Packed(matrix) if let Some(layout) = matrix.layout() => {
            let read = move |row, out: &mut [GroupRun]| {
                let (part, row) = place(parts, row);
                let Source::Packed(matrix) = part.source else { unreachable!("parts of one layout") };
                matrix.runs(row, out);
            };
            let rows = MatrixRows::new(dims, d_in / BLOCK_SIZE, read);
            BlockRows::Groups { rows, n_runs: layout.n_runs, order: layout.order.clone() }
        }
        Source::Packed(matrix) if let (Dtype::Fp8, Some(scales)) = (dtype, matrix.fp8_scales()) => {
            let read = move |row, out: &mut [u8]| matrix.fp8_row(row, out);
            BlockRows::Fp8(MatrixRows::new(dims, d_in, read), scales.clone())
        }
        _ if dtype == Dtype::Mxfp4 => {
            let read = move |row, out: &mut [MxBlock]| {
                let (part, row) = place(parts, row);
                match part.source {
                    Source::Packed(matrix) => matrix.mx_blocks(row, out),
                    Source::Plain(..) => {
                        let (element, bytes) = part.plain_row(row, d_in);
                        element.mx_blocks(bytes, out);
                    }
                }
            };
            BlockRows::Mx(MatrixRows::new(dims, d_in / BLOCK_SIZE, read))
        }
        _ if dtype.has_super_blocks() => {
            let read = move |row, out: &mut [KBlock]| {
                let (part, row) = place(parts, row);
                let (element, bytes) = part.plain_row(row, d_in);
                element.k_blocks(bytes, out);
            };
            BlockRows::Super(MatrixRows::new(dims, d_in / K_BLOCK, read))
        }
        _ => {
            let read = move |row, out: &mut [QuantizedBlock]| {
                let (part, row) = place(parts, row);
                part.source.small_blocks(row, d_in, dtype, out);
            };
            BlockRows::Small(MatrixRows::new(dims, d_in / BLOCK_SIZE, read))
        }
    }
}

/// The error for a packed matrix that no dtype represents exactly.
fn needs_dtype(source: &Source<'_>, packed: Option<&PackedMatrices<'_>>) -> Error {
    let packed = packed.into_iter().flat_map(|packed| packed.values());
    let n_values: usize = packed.map(|matrix| matrix.dims().iter().product::<usize>()).sum();
    let n_bytes = ByteSize(2 * n_values as u64);
    source
        .error(format!(
            "is quantized in a way that Hearth does not compute with; rounded to f16, the model's quantized matrices take \
             {n_bytes}"
        ))
        .with_hint("choose what to round to: `--dtype f16`, `--dtype bf16`, or for less memory `--quantize q8`")
}

fn cannot_merge(source: &Source<'_>) -> Error {
    source.error("is quantized, so an adapter cannot be added to it").with_hint(
        "merge the adapter with the model before quantization, or use it beside the model (`--lora NAME=ADAPTER`)",
    )
}

/// The part that row `row` of the parameter is from, and the row's place in its tensor.
fn place<'p, 'a>(parts: &'p [StoredPart<'a>], mut row: usize) -> (&'p StoredPart<'a>, usize) {
    for part in parts {
        match row.checked_sub(part.n_rows) {
            Some(behind) => row = behind,
            None => return (part, part.order.place(row)),
        }
    }
    unreachable!("the shapes of all parts were checked")
}

impl StoredPart<'_> {
    /// Type and bytes of row `row` of the tensor, which has `width` values; of a part that is no packed matrix.
    fn plain_row(&self, row: usize, width: usize) -> (ElementType, &[u8]) {
        let Source::Plain(tensor, element) = &self.source else { unreachable!("packed matrices have no such dtypes") };
        (*element, bytes_of_row(tensor, *element, row, width))
    }

    /// Whether rows are columns of the tensor's matrices, so that a block has values of many rows.
    fn has_columns(&self) -> bool {
        matches!(self.order, RowOrder::HeadColumns { .. })
    }

    /// The values of row `row` of the tensor, or of column `row` if it is transposed.
    fn decode(&self, row: usize, out: &mut [f32]) {
        match &self.source {
            Source::Packed(matrix) => matrix.decode(row, out),
            Source::Plain(tensor, element) if self.order.is_transposed() => {
                for (n, out) in out.iter_mut().enumerate() {
                    element.decode(bytes_of_row(tensor, *element, n * self.n_rows + row, 1), std::slice::from_mut(out));
                }
            }
            Source::Plain(tensor, element) if let RowOrder::HeadColumns { n_heads } = self.order => {
                let width = self.n_rows / n_heads;
                let (head, column) = (row / width, row % width);
                let (len, d_in) = (element.block_len(), out.len());
                let mut block = vec![0.0; len];
                for (n, out) in out.iter_mut().enumerate() {
                    let of_row = bytes_of_row(tensor, *element, head * d_in + n, width);
                    element
                        .decode(&of_row[column / len * element.block_bytes()..][..element.block_bytes()], &mut block);
                    *out = block[column % len];
                }
            }
            Source::Plain(tensor, element) => element.decode(bytes_of_row(tensor, *element, row, out.len()), out),
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use std::{fs, path::Path};

    use crate::weights::model_dir::{self, LoadOptions};

    #[test]
    fn surplus_tensors_error_names_the_first_in_name_order() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/llama");
        let dir = tempfile::tempdir().unwrap();
        fs::copy(source.join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
        let config = fs::read_to_string(source.join("config.json")).unwrap();
        let one_layer = config.replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1");
        assert_ne!(one_layer, config);
        fs::write(dir.path().join("config.json"), one_layer).unwrap();
        let options = LoadOptions { device: burn::tensor::Device::flex(), dtype: None };
        for _ in 0..8 {
            let error = model_dir::load_gpt(dir.path(), &options).unwrap_err().to_string();
            assert!(error.contains("`model.layers.1.input_layernorm.weight`"), "{error}");
        }
    }
}
