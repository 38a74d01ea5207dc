//! Where a model comes from: a path, or the hub by name. All code that opens a model by `--model` uses this module.

use std::{
    ffi::OsStr,
    fmt, io,
    path::{Path, PathBuf},
};

use crate::{
    error::{Error, Result},
    hub::{Download, Hub, HubModel, HubOptions, ModelPart},
};

/// Endings of files that a model's name does not have.
const FILE_ENDINGS: [&str; 5] = [".gguf", ".safetensors", ".json", ".bin", ".pt"];

/// A model dir or GGUF file, or a model of the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelSource {
    /// A path.
    Path(PathBuf),
    /// A model of the hub.
    Hub(HubModel),
}

impl ModelSource {
    /// `org/name`, optionally with `@revision` and `:file` (see [`HubModel::parse`]), is a model of the hub unless it
    /// is a path: a file or folder that exists, a name with the ending of a file, or a name in a folder that exists.
    pub fn parse(text: impl AsRef<OsStr>) -> ModelSource {
        let path = Path::new(text.as_ref());
        match path.to_str().and_then(HubModel::parse) {
            Some(model) if !path.exists() && !is_file_name(&model) && folder_of(&model).is_none() => {
                ModelSource::Hub(model)
            }
            _ => ModelSource::Path(path.to_owned()),
        }
    }

    /// Rejects a path that does not exist, without opening anything.
    ///
    /// # Errors
    /// The path does not exist; a model of the hub is never rejected.
    pub fn require_path(&self) -> Result<()> {
        match self {
            ModelSource::Path(path) => match path.symlink_metadata() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Err(absent(path)),
                // Whoever opens it reports other errors.
                _ => Ok(()),
            },
            ModelSource::Hub(_) => Ok(()),
        }
    }

    /// The path of the model. A model of the hub is downloaded if the cache does not have it; the settings are those of
    /// the environment.
    ///
    /// # Errors
    /// A path does not exist; or as [`HubModel::open`].
    pub fn open(&self, part: ModelPart, progress: &mut dyn FnMut(Download)) -> Result<PathBuf> {
        self.require_path()?;
        match self {
            ModelSource::Path(path) => Ok(path.clone()),
            ModelSource::Hub(model) => model.open(&Hub::new(HubOptions::from_env()?)?, part, progress),
        }
    }
}

impl fmt::Display for ModelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelSource::Path(path) => path.display().fmt(f),
            ModelSource::Hub(model) => model.fmt(f),
        }
    }
}

fn is_file_name(model: &HubModel) -> bool {
    let id = model.repo().id().to_ascii_lowercase();
    FILE_ENDINGS.iter().any(|ending| id.ends_with(ending))
}

/// The first part of the model's name, if there is a folder of that name here: then the text is a path.
fn folder_of(model: &HubModel) -> Option<&str> {
    model.repo().id().split('/').next().filter(|folder| Path::new(folder).is_dir())
}

/// The error for a path that does not exist, which may have been meant as a name.
fn absent(path: &Path) -> Error {
    let text = path.to_string_lossy();
    let model = HubModel::parse(&text);
    let hint = match model.as_ref().map(|model| (model, folder_of(model))) {
        Some((model, Some(folder))) => format!(
            "`{folder}` is a folder here, so this is read as a path; for the model `{model}` of the Hugging Face hub, run the \
             command in another folder"
        ),
        _ if text.starts_with("https://") || text.starts_with("http://") => {
            "use the name of the model without the address: `ORG/NAME`".to_owned()
        }
        _ => {
            "use a model dir or a GGUF file on this machine, or a model of the Hugging Face hub by its name `ORG/NAME`"
                .to_owned()
        }
    };
    Error::file(path, "does not exist").with_hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_source_distinguishes_hub_names_from_paths() {
        for name in ["org/name", "org/name@v1", "org/name:Q4_K_M", "org/name@v1:dir/model.gguf", "org/v1.5"] {
            assert_eq!(
                ModelSource::parse(name),
                ModelSource::Hub(HubModel::parse(name).unwrap_or_else(|| unreachable!()))
            );
        }
        // `src` is a folder here, with a file `lib.rs`.
        for path in [
            "src",
            "src/lib.rs",
            "src/absent",
            "src/absent:Q4_0",
            "name",
            "./org/name",
            "/org/name",
            "../org",
            "org/name/",
            "a/b/c",
            "org/model.gguf",
            "org/model.safetensors",
            "https://huggingface.co/org/name",
            "org\\name",
            "",
        ] {
            assert_eq!(ModelSource::parse(path), ModelSource::Path(path.into()), "{path}");
        }
    }

    #[test]
    fn opening_an_unknown_model_name_explains_paths_and_hub_names() {
        let refused = |text: &str| match ModelSource::parse(text).open(ModelPart::Whole, &mut |_| {}) {
            Ok(path) => format!("{} exists", path.display()),
            Err(error) => error.to_string(),
        };
        assert_eq!(
            refused("gpt2"),
            "`gpt2`: does not exist\nhint: use a model dir or a GGUF file on this machine, or a model of the Hugging Face hub \
             by its name `ORG/NAME`"
        );
        let hidden = refused("src/absent@v1");
        assert!(
            hidden.contains("`src` is a folder here") && hidden.contains("the model `src/absent@v1` of"),
            "{hidden}"
        );
        assert!(refused("https://huggingface.co/org/name").contains("without the address: `ORG/NAME`"));
        assert_eq!(refused("src"), "src exists");
    }
}
