//! Checks the inputs that must be the same on all ranks when a run starts: otherwise their sums would be meaningless.

use anyhow::{Result, bail};

use super::Group;

/// Something that must be the same on all ranks.
#[derive(Clone, Debug)]
pub struct Fact {
    /// What is compared, to complete "has another", such as `program`.
    pub what: &'static str,
    /// Its value, by lines if there are several.
    pub value: String,
    /// The hint if ranks differ.
    pub hint: &'static str,
}

impl Group {
    /// Refuses ranks that differ in a fact. All ranks must give the same facts, in the same order.
    ///
    /// # Errors
    /// The first fact in which a rank differs from rank 0, with both values; or a rank does not answer.
    pub fn require_same(&self, facts: &[Fact]) -> Result<()> {
        if self.is_alone() {
            return Ok(());
        }
        let values: Vec<&str> = facts.iter().map(|fact| fact.value.as_str()).collect();
        let all: Vec<Vec<String>> = self.gather(&values.into_iter().map(str::to_owned).collect())?;
        for (number, Fact { what, hint, .. }) in facts.iter().enumerate() {
            let value_of = |rank: usize| all[rank].get(number).map_or("", String::as_str);
            let Some(other) = (1..self.size()).find(|rank| value_of(*rank) != value_of(0)) else { continue };
            let (here, there) = difference(value_of(other), value_of(0));
            bail!("rank {other} has another {what} than rank 0: {here}, and rank 0 {there}\nhint: {hint}");
        }
        Ok(())
    }
}

/// Both values, or their first lines that differ.
fn difference(one: &str, other: &str) -> (String, String) {
    let (mut lines, mut others) = (one.lines(), other.lines());
    let shown = |line: Option<&str>| line.map_or("nothing".to_owned(), |line| format!("`{line}`"));
    loop {
        match (lines.next(), others.next()) {
            (line, other) if line != other || line.is_none() => return (shown(line), shown(other)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use crate::ranks::threads::run;

    #[test]
    fn rank_that_differs_is_named_with_both_values_on_all_ranks() {
        let errors = run(4, |group| {
            let program = Fact { what: "program", value: "a".to_owned(), hint: "install one" };
            let value = if group.rank() == 2 { "x = 1\ny = 3" } else { "x = 1\ny = 2" }.to_owned();
            let settings = Fact { what: "setting", value, hint: "give all the same" };
            group.require_same(std::slice::from_ref(&program)).unwrap();
            group.require_same(&[program, settings]).unwrap_err().to_string()
        });
        for error in errors {
            let expected =
                "rank 2 has another setting than rank 0: `y = 3`, and rank 0 `y = 2`\nhint: give all the same";
            assert_eq!(error, expected);
        }
        assert_eq!(difference("a\nb", "a"), ("`b`".to_owned(), "nothing".to_owned()));
        assert_eq!(difference("", "40"), ("nothing".to_owned(), "`40`".to_owned()));
    }
}
