//! Checks that all ranks start with the same inputs.

use anyhow::Result;
use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::Tensor,
};
use hearth_model::{
    files::digest::{Digest, Digester},
    ops,
    system::device,
};

use super::Trainer;
use crate::{eval::read_floats, ranks::same::Fact};

impl Trainer<'_> {
    /// Rejects ranks that would compute something else than rank 0. All ranks must call it.
    ///
    /// # Errors
    /// The rank that differs, the difference, and a hint.
    pub fn require_same_start(&self) -> Result<()> {
        if self.group.is_alone() {
            return Ok(());
        }
        let device = self.learner.gpt.device();
        let instructions = format!("{:?}", ops::instruction_set()?);
        self.group.require_same(&[
            Fact {
                what: "device",
                value: format!("{} ({instructions})", device::name(&device)),
                hint: "sums are rounded as the device does: use machines of one kind, or `HEARTH_CPU` on all of them (docs/serving/devices.md)",
            },
            Fact {
                what: "tokenizer",
                value: self.data.tokenizer_hash.short(),
                hint: "prepare the data once, and give all machines the same folder",
            },
            Fact {
                what: "data set",
                value: self.data.hash.short(),
                hint: "prepare the data once, and give all machines the same folder",
            },
            Fact {
                what: "model to begin with",
                value: format!("{}{}", self.weights_digest()?.short(), self.state.base.map_or_else(String::new, |base| format!(" on {}", base.short()))),
                hint: "give all machines the same model, and a folder that they share as `--out`",
            },
        ])
    }

    /// The digest of all trained values.
    fn weights_digest(&self) -> Result<Digest> {
        struct Read {
            digester: Digester,
            result: Result<()>,
        }
        impl ModuleVisitor for Read {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if !param.val().is_require_grad() {
                    return;
                }
                let value = param.val().inner();
                let n_values = value.shape().num_elements();
                match read_floats(value.reshape([n_values])) {
                    Ok(values) => self.digester.update(bytemuck::cast_slice(&values)),
                    Err(error) => self.result = Err(error),
                }
            }
        }
        let mut read = Read { digester: Digester::new(), result: Ok(()) };
        self.learner.gpt.visit(&mut read);
        read.result.map(|()| read.digester.finish())
    }
}
