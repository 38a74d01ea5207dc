//! Lists matrices that take more memory than in their file, for the log.

use std::path::Path;

use crate::files::byte_size::ByteSize;

/// Quantized matrices that take more memory than in the file, for the log.
#[derive(Default)]
pub(super) struct LargerMatrices {
    n: usize,
    in_file: usize,
    in_memory: usize,
}

impl LargerMatrices {
    /// Counts a matrix if it takes over a tenth more.
    pub(super) fn add(&mut self, in_file: usize, in_memory: usize) {
        // Small matrices are padded.
        if in_memory > in_file + in_file / 10 + (1 << 16) {
            self.n += 1;
            self.in_file += in_file;
            self.in_memory += in_memory;
        }
    }

    pub(super) fn log(&self, path: &Path) {
        let [in_file, in_memory] = [self.in_file, self.in_memory].map(|n_bytes| ByteSize(n_bytes as u64));
        if self.n > 0 {
            tracing::info!(
                "`{}`: {} quantized matrices take {in_memory} in memory, and {in_file} in the file: the device does not \
                 compute with their types, or not with several in one matrix",
                path.display(),
                self.n
            );
        }
    }
}
