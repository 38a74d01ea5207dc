//! What `quantization_config` says of matrices whose tensors alone do not tell how to read them.

use serde_json::Value;

use super::Method;

/// The layouts of compressed-tensors that are read.
const FORMATS: [&str; 6] =
    ["pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision", "dense"];

/// The rows and inputs of a block that shares a scale, if `json` says so under `key`.
fn block(json: &Value, key: &str) -> Option<[usize; 2]> {
    let sizes: Vec<usize> = json[key].as_array()?.iter().filter_map(|size| Some(size.as_u64()? as usize)).collect();
    <[usize; 2]>::try_from(sizes).ok().filter(|sizes| sizes.iter().all(|&size| size > 0))
}

/// What `quantization_config` of compressed-tensors says of all matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Stated {
    /// The rows and inputs of a block of 8-bit floats.
    pub(in super::super) block: Option<[usize; 2]>,
    /// Whether integers have zero points.
    pub(in super::super) has_zeros: bool,
    /// Whether inputs are grouped in an order of their own.
    pub(in super::super) has_order: bool,
}

/// 8-bit floats, by block if `json` says how large one is.
pub(in super::super) fn fp8(json: &Value) -> Method {
    Method::Fp8 { block: block(json, "weight_block_size") }
}

/// Compressed-tensors. The error continues a sentence that begins with the key.
pub(in super::super) fn compressed_tensors(json: &Value) -> Result<Method, (String, String)> {
    let known = |key: &str, format: &Value| match format.as_str() {
        None => Ok(()),
        Some(format) if FORMATS.contains(&format) => Ok(()),
        Some(format) => {
            Err((key.to_owned(), format!("is {format:?}, which is not supported; supported: {}", FORMATS.join(", "))))
        }
    };
    known(".format", &json["format"])?;
    let sparsity = &json["sparsity_config"]["format"];
    if sparsity.as_str().is_some_and(|format| format != "dense") {
        return Err((".sparsity_config.format".to_owned(), format!("is {sparsity}, which is not supported")));
    }
    if json["transform_config"]["config_groups"].as_object().is_some_and(|groups| !groups.is_empty()) {
        return Err((".transform_config".to_owned(), "has transforms, which are not supported".to_owned()));
    }
    let groups = json["config_groups"].as_object();
    // What all groups say of their weights. Which matrices are in which group is not read.
    let all = |holds: fn(&Value) -> bool| {
        groups.is_some_and(|groups| !groups.is_empty() && groups.values().all(|group| holds(&group["weights"])))
    };
    let mut found = Stated {
        block: None,
        has_zeros: all(|weights| weights["symmetric"] == false && weights["type"] != "float"),
        has_order: all(|weights| weights["actorder"] == "group"),
    };
    for (name, group) in groups.into_iter().flatten() {
        let key = |rest: &str| format!(".config_groups.{name}{rest}");
        known(&key(".format"), &group["format"])?;
        let weights = &group["weights"];
        let format = group["format"].as_str().or(json["format"].as_str());
        let (kind, bits) = (weights["type"].as_str().unwrap_or("int"), weights["num_bits"].as_u64().unwrap_or(8));
        let is_read = match (kind, format) {
            ("int", Some("pack-quantized")) => bits == 4 || bits == 8,
            ("int", _) => bits <= 8,
            _ => kind == "float" && bits == 8,
        };
        if !weights.is_null() && !is_read {
            let what = format!("are {kind} of {bits} bits; supported are int of 4 and 8, and float of 8");
            return Err((key(".weights"), what));
        }
        found.block = found.block.or(block(weights, "block_structure"));
    }
    Ok(Method::CompressedTensors(found))
}
