//! Times products and attention: `time [THREADS]`. Each figure is the fastest of some passes.
fn main() {
    hearth_kernels_alone::ops::cpu::time();
}
