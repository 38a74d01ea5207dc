//! The decoding methods of the table in [Holtzman et al. 2019](https://arxiv.org/abs/1904.09751), and later ones.

use anyhow::{Result, anyhow};
use hearth_model::decode::sampling::{
    Mirostat, SamplingParams,
    beam::{BeamGroups, BeamKind, EarlyStopping},
};
use hearth_training::eval::generation::Decoding;

/// A row of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct Method {
    /// Its name in the table.
    pub name: String,
    /// The decoding settings; `None`: the human text.
    pub decoding: Option<Decoding>,
}

/// The beams of both searches.
const BEAMS: usize = 16;

impl Method {
    /// The row of human text.
    pub const HUMAN: &'static str = "human";
    /// The row of beam search, which the first figure shows.
    pub const BEAM: &'static str = "beam 16";

    /// All rows, in the order of the paper; the last three are not in it.
    pub fn all(seed: u64) -> Vec<Method> {
        let pure = SamplingParams { seed, ..SamplingParams::default() };
        let sampling = |change: &dyn Fn(&mut SamplingParams)| {
            let mut params = pure.clone();
            change(&mut params);
            Some(Decoding::Sampling(params))
        };
        let beams = |kind| Some(Decoding::Beams { width: BEAMS, kind });
        let best =
            BeamKind::Best { length_penalty: 1.0, early_stopping: EarlyStopping::default(), groups: BeamGroups::ONE };
        let rows = [
            (Self::HUMAN, None),
            ("greedy", Some(Decoding::Sampling(SamplingParams { seed, ..SamplingParams::greedy() }))),
            (Self::BEAM, beams(best)),
            ("stochastic beam 16", beams(BeamKind::Stochastic { seed })),
            ("pure sampling", sampling(&|_| {})),
            ("temperature 0.9", sampling(&|params| params.temperature = 0.9)),
            ("top-k 40", sampling(&|params| params.top_k = 40)),
            ("top-k 640", sampling(&|params| params.top_k = 640)),
            ("top-k 40, temperature 0.7", sampling(&|params| (params.top_k, params.temperature) = (40, 0.7))),
            ("nucleus 0.95", sampling(&|params| params.top_p = 0.95)),
            ("min-p 0.1", sampling(&|params| params.min_p = 0.1)),
            ("typical 0.95", sampling(&|params| params.typical_p = 0.95)),
            ("mirostat 2, tau 5", sampling(&|params| params.mirostat = Some(Mirostat::default()))),
        ];
        rows.into_iter().map(|(name, decoding)| Method { name: name.to_owned(), decoding }).collect()
    }

    /// The methods with these names; all if `names` is empty.
    ///
    /// # Errors
    /// A name is unknown; the message lists all.
    pub fn named(names: &[String], seed: u64) -> Result<Vec<Method>> {
        let all = Self::all(seed);
        let known: Vec<String> = all.iter().map(|method| method.name.clone()).collect();
        if let Some(unknown) = names.iter().find(|name| !known.contains(name)) {
            return Err(anyhow!(
                "`--methods` has `{unknown}`, which is none of the methods\nhint: use some of `{}`",
                known.join("`, `")
            ));
        }
        Ok(all.into_iter().filter(|method| names.is_empty() || names.contains(&method.name)).collect())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn decoding_methods_have_valid_parameters_and_unique_names() {
        let all = Method::all(3);
        for (at, method) in all.iter().enumerate() {
            assert!(all[..at].iter().all(|other| other.name != method.name));
            if let Some(Decoding::Sampling(params)) = &method.decoding {
                params.validate(1000).unwrap();
                assert_eq!(params.seed, 3);
            }
        }
        assert_eq!(Method::named(&["greedy".to_owned()], 3).unwrap(), all[1..2]);
        let error = Method::named(&["gredy".to_owned()], 3).unwrap_err().to_string();
        assert!(error.contains("`gredy`") && error.contains("`top-k 640`"), "{error}");
    }
}
