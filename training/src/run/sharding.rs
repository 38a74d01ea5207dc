//! Divides the work for parameters among ranks: one rank owns a parameter, adds up its gradient, holds its optimizer
//! state and updates it.
//!
//! Gradients are summed over the ranks in the upper levels of the binary tree of [`tree_sum`](super::tree_sum). At each
//! level, two ranks whose sums are siblings each send the half that the other one still needs (recursive halving), so a
//! rank sends `(N - 1) / N` of the gradient, most of it to its nearest neighbors. Updated weights are sent back in the
//! reverse order.

use std::collections::BTreeMap;

use anyhow::Result;
use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{Device, Tensor, TensorData},
};
use hearth_model::gpt::ParamPath;

use crate::{
    eval::read_floats,
    ranks::Group,
    run::optim::{Gradients, Optimizer, PutValues},
};

/// Approximate number of values per message: tensors are sent together until there are this many.
const BUNDLE: usize = 1 << 22;

/// The owners of all parameters that train.
#[derive(Clone, Debug)]
pub struct Shards {
    group: Group,
    /// Where gradients and weights are.
    device: Device,
    /// By path.
    params: Vec<ShardedParam>,
}

/// A parameter and its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardedParam {
    /// Its path.
    pub path: String,
    /// Its values.
    pub n_values: usize,
    /// The rank that owns it.
    pub owner: usize,
}

/// Assigns parameters to `n_ranks` owners. `params` has each parameter's number of values, and of values in the
/// optimizer's state. From the largest state to the smallest, each goes to the rank with the least state. So no rank
/// has more than an equal share plus the largest state.
pub fn owners(params: &BTreeMap<String, [usize; 2]>, n_ranks: usize) -> Vec<ShardedParam> {
    let mut largest_first: Vec<_> = params.iter().collect();
    largest_first.sort_by_key(|(path, [_, n_state])| (usize::MAX - n_state, *path));
    let mut loads = vec![0; n_ranks];
    let mut found = BTreeMap::new();
    for (path, [n_values, n_state]) in largest_first {
        let owner = (0..n_ranks).min_by_key(|rank| (loads[*rank], *rank)).unwrap_or_default();
        loads[owner] += n_state;
        found.insert(path, ShardedParam { path: path.clone(), n_values: *n_values, owner });
    }
    found.into_values().collect()
}

/// Which ranks have a gradient of which parameters, as each rank has reported.
#[derive(Clone, Debug)]
pub struct Presence {
    /// For each rank, the numbers of the parameters without a gradient; `None`: it has no gradients at all.
    absent: Vec<Option<Vec<usize>>>,
}

impl Presence {
    /// All `n_ranks` ranks have a gradient of every parameter.
    pub fn of_all(n_ranks: usize) -> Presence {
        Presence { absent: vec![Some(Vec::new()); n_ranks] }
    }

    /// Built from the results of [`Shards::absent`] on all ranks.
    pub fn new(absent: Vec<Option<Vec<usize>>>) -> Presence {
        Presence { absent }
    }

    /// Whether one of these ranks has a gradient of the parameter with this number.
    fn is_in(&self, ranks: std::ops::Range<usize>, number: usize) -> bool {
        let has = |absent: &Option<Vec<usize>>| absent.as_ref().is_some_and(|absent| !absent.contains(&number));
        self.absent[ranks].iter().any(has)
    }
}

/// Gives a tensor of this rank.
type Read<'a> = dyn FnMut(&ShardedParam) -> Option<Tensor<1>> + 'a;

impl Shards {
    /// Assigns all trained parameters of `module` to owners among the ranks of `group`. `optimizer` must be the
    /// module's optimizer.
    pub fn new<M: Module>(group: Group, module: &M, optimizer: &Optimizer, device: Device) -> Shards {
        let params = owners(&optimizer.state_sizes(module), group.size());
        Shards { group, device, params }
    }

    /// The ranks.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Where gradients and weights are.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The parameters, by path.
    pub fn params(&self) -> &[ShardedParam] {
        &self.params
    }

    /// Whether this rank owns a parameter.
    fn owns(&self, param: &ShardedParam) -> bool {
        param.owner == self.group.rank()
    }

    /// The paths that this rank owns.
    pub fn owned(&self) -> impl Iterator<Item = &str> {
        self.params.iter().filter(|param| self.owns(param)).map(|param| param.path.as_str())
    }

    /// The numbers of the parameters that have no gradient here, for [`Presence`].
    pub fn absent(&self, gradients: &Gradients) -> Vec<usize> {
        let is_absent =
            |(number, param): (usize, &ShardedParam)| gradients.get(&param.path).is_none().then_some(number);
        self.params.iter().enumerate().filter_map(is_absent).collect()
    }

    /// The sums over all ranks of the gradients that this rank owns.
    ///
    /// # Errors
    /// A peer does not answer, or the device fails.
    pub fn sum(&self, gradients: Gradients, presence: &Presence) -> Result<Gradients> {
        let rank = self.group.rank();
        let mut gradients = gradients;
        for level in 0..self.group.n_levels() {
            let (peer, n_below) = (rank ^ (1 << level), 1 << level);
            let block_of = |rank: usize| rank / n_below * n_below..(rank / n_below + 1) * n_below;
            let (mut send, mut receive) = (Vec::new(), Vec::new());
            for (number, param) in self.params.iter().enumerate() {
                match (rank ^ param.owner).trailing_zeros() {
                    // The sum has gone to another rank at an earlier level.
                    differs if differs < level => {}
                    differs if differs == level => send.extend(presence.is_in(block_of(rank), number).then_some(param)),
                    _ if presence.is_in(block_of(peer), number) => receive.push(param),
                    _ => {}
                }
            }
            let mut sent = Gradients::default();
            send.iter().for_each(|param| sent.put(&param.path, gradients.take(&param.path)));
            let mut read = |param: &ShardedParam| sent.take(&param.path);
            self.exchange(peer, (&send, &mut read), &receive, &mut |param, there| {
                let (left, right) = match gradients.take(&param.path) {
                    Some(here) if peer < rank => (there, Some(here)),
                    Some(here) => (here, Some(there)),
                    None => (there, None),
                };
                gradients.put(&param.path, Some(Gradients::sum_of(left, right)));
            })?;
        }
        Ok(gradients)
    }

    /// `module` with the weights that other ranks have updated.
    ///
    /// # Errors
    /// A peer does not answer, or the device fails.
    pub fn with_updated<M: Module>(&self, module: M) -> Result<M> {
        let rank = self.group.rank();
        let mut module = module;
        for level in (0..self.group.n_levels()).rev() {
            let peer = rank ^ (1 << level);
            // At this point, a rank knows the parameters whose owner's number has the same bits up to this level.
            let known_to = |rank: usize, param: &&ShardedParam| (rank ^ param.owner).trailing_zeros() > level;
            let send: Vec<_> = self.params.iter().filter(|param| known_to(rank, param)).collect();
            let receive: Vec<_> = self.params.iter().filter(|param| known_to(peer, param)).collect();
            let mut found = weights_of(&module);
            let mut read = |param: &ShardedParam| found.remove(&param.path);
            let mut received = BTreeMap::new();
            self.exchange(peer, (&send, &mut read), &receive, &mut |param, values| {
                received.insert(param.path.clone(), values);
            })?;
            drop(found);
            module = module.map(&mut PutValues::new(received));
        }
        Ok(module)
    }

    /// Sends the tensors of `send`, which `read` returns, to `peer`, some at a time, and passes the tensors of
    /// `receive` to `put`.
    fn exchange(
        &self,
        peer: usize,
        (send, read): (&[&ShardedParam], &mut Read<'_>),
        receive: &[&ShardedParam],
        put: &mut dyn FnMut(&ShardedParam, Tensor<1>),
    ) -> Result<()> {
        let (mut send, mut receive) = (bundles(send), bundles(receive));
        loop {
            let (sent, wanted) = (send.next(), receive.next());
            if sent.is_none() && wanted.is_none() {
                return Ok(());
            }
            let n_values_of = |params: &[&ShardedParam]| params.iter().map(|param| param.n_values).sum::<usize>();
            let sent = sent.unwrap_or_default();
            let mut values = Vec::with_capacity(n_values_of(sent));
            for param in sent {
                let tensor = read(param).unwrap_or_else(|| Tensor::zeros([param.n_values], &self.device));
                values.append(&mut read_floats(tensor)?);
            }
            let wanted = wanted.unwrap_or_default();
            let mut there = vec![0.0; n_values_of(wanted)];
            self.group.exchange(peer, &values, &mut there)?;
            let mut rest = there.as_slice();
            for param in wanted {
                let (values, behind) = rest.split_at(param.n_values);
                rest = behind;
                let values = TensorData::new(values.to_vec(), [param.n_values]);
                put(param, Tensor::from_data(values, &self.device));
            }
        }
    }
}

/// Parts of `params` in order, of [`BUNDLE`] values or one parameter at least.
fn bundles<'a, 'b>(params: &'b [&'a ShardedParam]) -> impl Iterator<Item = &'b [&'a ShardedParam]> {
    let mut rest = params;
    std::iter::from_fn(move || {
        let mut n_values = 0;
        let fits = |param: &&&ShardedParam| {
            let is_room = n_values < BUNDLE;
            n_values += param.n_values;
            is_room
        };
        let n = rest.iter().take_while(fits).count();
        let (bundle, behind) = rest.split_at(n);
        rest = behind;
        (!bundle.is_empty()).then_some(bundle)
    })
}

/// The weights of `module` that train, flat and without autodiff, by path.
pub fn weights_of(module: &impl Module) -> BTreeMap<String, Tensor<1>> {
    let mut found = Weights::default();
    module.visit(&mut found);
    found.by_path
}

#[derive(Default)]
struct Weights {
    path: ParamPath,
    by_path: BTreeMap<String, Tensor<1>>,
}

impl ModuleVisitor for Weights {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.exit();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if param.val().is_require_grad() {
            let value = param.val().inner();
            let n_values = value.shape().num_elements();
            self.by_path.insert(self.path.path(), value.reshape([n_values]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(sizes: &[(&str, usize)]) -> BTreeMap<String, [usize; 2]> {
        sizes.iter().map(|(path, n)| ((*path).to_owned(), [*n, 2 * n])).collect()
    }

    #[test]
    fn no_owner_has_more_state_than_a_share_and_the_largest_parameter() {
        let params: BTreeMap<String, [usize; 2]> =
            (0..37).map(|n| (format!("p{n:02}"), [1 + n * n % 101, (1 + n * n % 101) * (1 + n % 2)])).collect();
        let (all, largest) = params.values().fold((0, 0), |(all, most), [_, n]| (all + n, most.max(*n)));
        for n_ranks in [1, 2, 4, 8, 64] {
            let owned = owners(&params, n_ranks);
            assert!(owned.is_sorted_by_key(|param| &param.path) && owned.len() == params.len());
            for rank in 0..n_ranks {
                let load: usize =
                    owned.iter().filter(|param| param.owner == rank).map(|param| params[&param.path][1]).sum();
                assert!(load <= all / n_ranks + largest, "{load} of {all} on rank {rank} of {n_ranks}");
            }
        }
        assert_eq!(owners(&params, 4), owners(&params, 4));
    }

    #[test]
    fn equal_parameters_are_dealt_out_in_turn() {
        let owned = owners(&sizes(&[("a", 5), ("b", 5), ("c", 9), ("d", 5)]), 2);
        let owners: Vec<_> = owned.iter().map(|param| (param.path.as_str(), param.owner)).collect();
        assert_eq!(owners, [("a", 1), ("b", 1), ("c", 0), ("d", 0)]);
    }

    #[test]
    fn bundles_hold_whole_parameters_in_order() {
        let params: Vec<_> = [BUNDLE - 1, 2, BUNDLE, 0, 7]
            .map(|n_values| ShardedParam { path: String::new(), n_values, owner: 0 })
            .into();
        let params: Vec<_> = params.iter().collect();
        let counts: Vec<_> =
            bundles(&params).map(|bundle| bundle.iter().map(|param| param.n_values).collect::<Vec<_>>()).collect();
        assert_eq!(counts, [vec![BUNDLE - 1, 2], vec![BUNDLE], vec![0, 7]]);
        assert_eq!(bundles(&[]).count(), 0);
    }
}
