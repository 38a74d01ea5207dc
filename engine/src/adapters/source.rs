//! The folders that adapters are read from. Folders that clients name must be below a root.

use std::{
    io,
    path::{self, Component, Path, PathBuf},
};

use hearth_model::{Error, Result, weights::model_dir};

use super::AdapterError;

/// The files that an adapter is read from, unless it is a GGUF file.
const FILES: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];

/// Where an adapter is read from.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) dir: PathBuf,
    /// The folder as given.
    pub(super) given: PathBuf,
    /// If a client named the folder: the root that its files must be below, with links resolved.
    root: Option<PathBuf>,
}

impl Source {
    /// A folder from the command line; it may be anywhere.
    pub(super) fn anywhere(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), given: dir.to_owned(), root: None }
    }

    /// The folder `given`, if it is below `root`; a relative path starts there. Does not reveal whether paths outside
    /// of `root` exist: a link that leads out of it is reported like a missing folder.
    pub(super) fn below(root: &Path, given: &str) -> Result<Self, AdapterError> {
        let outside = || AdapterError::Outside(given.to_owned());
        let missing = |_| AdapterError::Missing(given.to_owned());
        let resolved = root.canonicalize().map_err(missing)?;
        // An absolute path may name the root as the command line does, links included.
        let typed = path::absolute(root).map_err(missing)?;
        let path = without_dots(&resolved.join(given));
        let inner = [&resolved, &without_dots(&typed)].into_iter().find_map(|root| path.strip_prefix(root).ok());
        let inner = inner.filter(|inner| !inner.as_os_str().is_empty()).ok_or_else(outside)?;
        let dir = resolved.join(inner).canonicalize().map_err(missing)?;
        if !dir.starts_with(&resolved) || dir == resolved {
            return Err(AdapterError::Missing(given.to_owned()));
        }
        Ok(Self { dir, given: given.into(), root: Some(resolved) })
    }

    /// The folder with the adapter's files, which for a training run is a folder in `dir`; or the GGUF file. Call it
    /// before each read: links may have changed since the adapter was registered.
    ///
    /// Between this check and the read, a process that can write below the root can still replace a file by a link.
    /// Clients cannot.
    ///
    /// # Errors
    /// A file is missing, or a link leads to it from below the root to outside.
    pub(super) fn folder(&self) -> Result<PathBuf> {
        let dir = model_dir::model_of(&self.dir).into_owned();
        let Some(root) = &self.root else { return Ok(dir) };
        let files = if dir.is_file() { vec![dir.clone()] } else { FILES.map(|file| dir.join(file)).to_vec() };
        for path in files {
            // The same error whether or not the file outside exists.
            if !path.canonicalize().is_ok_and(|file| file.starts_with(root)) {
                return Err(Error::Io { action: "read", path, reason: io::ErrorKind::NotFound.into() });
            }
        }
        Ok(dir)
    }
}

/// `path` without `.` and `..`.
fn without_dots(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => _ = plain.pop(),
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::{env, fs};

    use super::*;

    fn below(root: &Path, path: &str) -> Result<PathBuf, AdapterError> {
        Source::below(root, path).map(|source| source.dir)
    }

    #[test]
    fn adapter_paths_outside_the_lora_root_are_rejected() {
        let outer = tempfile::tempdir().unwrap();
        let root = outer.path().join("root");
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::create_dir_all(outer.path().join("secret")).unwrap();
        let resolved = root.canonicalize().unwrap();
        for (path, expected) in [("a", "a"), ("a/b", "a/b"), ("./a/../a", "a")] {
            assert_eq!(below(&root, path).unwrap(), resolved.join(expected), "{path}");
        }
        assert_eq!(below(&root, root.join("a").to_str().unwrap()).unwrap(), resolved.join("a"));
        let secret = outer.path().join("secret");
        for path in ["../secret", "../nothing", "a/../../secret", "/etc", secret.to_str().unwrap(), ".", ""] {
            assert!(matches!(below(&root, path), Err(AdapterError::Outside(_))), "{path}");
        }
        assert!(matches!(below(&root, "nothing"), Err(AdapterError::Missing(_))));
    }

    #[test]
    fn relative_lora_root_resolves_adapter_paths() {
        // Tests run in the folder of the package.
        let here = env::current_dir().unwrap().canonicalize().unwrap();
        let upwards: PathBuf =
            here.components().filter(|part| matches!(part, Component::Normal(_))).map(|_| "..").collect();
        let outer = tempfile::tempdir().unwrap();
        let outer = outer.path().canonicalize().unwrap();
        fs::create_dir_all(outer.join("root/a")).unwrap();
        let from_here = upwards.join(outer.strip_prefix("/").unwrap_or(&outer)).join("root");
        for root in [&from_here, &Path::new(".").join(&from_here), &from_here.join("."), &from_here.join("a/..")] {
            for path in ["a", "./a", "x/../a", outer.join("root/a").to_str().unwrap()] {
                assert_eq!(below(root, path).unwrap(), outer.join("root/a"), "{path} of {}", root.display());
            }
            assert!(matches!(below(root, ".."), Err(AdapterError::Outside(_))));
        }
        for root in [".", "./", "./src/.."] {
            assert_eq!(below(Path::new(root), "src").unwrap(), here.join("src"), "{root}");
            assert!(matches!(below(Path::new(root), "../nothing"), Err(AdapterError::Outside(_))), "{root}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn symlinks_out_of_the_lora_root_are_rejected() {
        use std::os::unix::fs::symlink;

        let outer = tempfile::tempdir().unwrap();
        let (root, secret) = (outer.path().join("root"), outer.path().join("secret"));
        for dir in [&root.join("own"), &root.join("files"), &root.join("run"), &secret] {
            fs::create_dir_all(dir).unwrap();
        }
        for dir in [&root.join("own"), &secret] {
            FILES.iter().for_each(|file| fs::write(dir.join(file), "").unwrap());
        }
        symlink(&secret, root.join("link")).unwrap();
        symlink("own", root.join("inner")).unwrap();
        for path in ["link", "link/nothing", "link/adapter_config.json", "nothing"] {
            assert!(matches!(below(&root, path), Err(AdapterError::Missing(_))), "{path}");
        }
        assert_eq!(below(&root, "inner").unwrap(), root.canonicalize().unwrap().join("own"));
        // The root itself may be a link, and clients may use its name.
        symlink(&root, outer.path().join("alias")).unwrap();
        let alias = outer.path().join("alias");
        assert_eq!(
            below(&alias, alias.join("own").to_str().unwrap()).unwrap(),
            root.canonicalize().unwrap().join("own")
        );

        let folder = |name: &str| Source::below(&root, name).unwrap().folder();
        assert!(folder("inner").is_ok());
        // A GGUF file, and a link to one outside.
        fs::write(root.join("a.gguf"), "GGUF").unwrap();
        fs::write(secret.join("b.gguf"), "GGUF").unwrap();
        symlink(secret.join("b.gguf"), root.join("b.gguf")).unwrap();
        assert_eq!(folder("a.gguf").unwrap(), root.canonicalize().unwrap().join("a.gguf"));
        assert!(matches!(below(&root, "b.gguf"), Err(AdapterError::Missing(_))));
        // A link to a file outside and a broken link give the same error.
        fs::write(root.join("files").join(FILES[0]), "").unwrap();
        let file = root.join("files").join(FILES[1]);
        let missing = folder("files").unwrap_err().to_string();
        for target in [secret.join(FILES[1]), secret.join("nothing")] {
            symlink(&target, &file).unwrap();
            assert_eq!(folder("files").unwrap_err().to_string(), missing, "{}", target.display());
            assert!(Source::anywhere(&root.join("files")).folder().is_ok(), "the command line may use links");
            fs::remove_file(&file).unwrap();
        }
        fs::write(root.join("run/config.toml"), "").unwrap();
        symlink(&secret, root.join("run/model")).unwrap();
        assert!(folder("run").is_err());
        // Links that change after registration.
        let source = Source::below(&root, "own").unwrap();
        assert!(source.folder().is_ok());
        fs::remove_dir_all(root.join("own")).unwrap();
        symlink(&secret, root.join("own")).unwrap();
        assert!(source.folder().is_err());
    }
}
