//! The small model that the binary carries, for when no `--model` is given.

/// Its name for clients.
pub const NAME: &str = "hearth-bundled";

/// One file of a model dir.
#[derive(Clone, Copy, Debug)]
pub struct BundledFile {
    /// Its name in the model dir.
    pub name: &'static str,
    /// What it holds.
    pub bytes: &'static [u8],
}

/// The bundled model dir, if this build carries one.
pub fn files() -> Option<&'static [BundledFile]> {
    None
}
