//! How a grammar is written.
//!
//! ```text
//! # A comment.
//! @they them their          A list: the names of its columns. `@they*`: several roles may have the same entry.
//!   [g=she] she/her/her     Its entries, separated by commas, their forms by `/`; features of the line's entries before them.
//!   [g=he] he/him/his
//!
//! opening                   A rule, and its alternatives.
//!   {hero.Name} was {a hero.trait} {hero.kind}.
//!   *3 Once, there was <somebody>.[ All was well.|*2 ]
//! ```
//!
//! In an alternative: `*3 ` its weight; `<rule>`; `[one|other]`, also with weights; `\n` a line break;
//! `{role.column}` a word, `{role.Column}` with a capital, `{a role.column}` and `{A role.column}` with an article,
//! `{=role.column}` or `{=a role.column}` the key of an answer, `{_.column}` a word that no role keeps;
//! `{?role feature=value/value}`, at the beginning, a condition; `{#key value}` a label; `{>user}` and `{>assistant}` the
//! start of a message. Roles whose names differ only in digits at the end, such as `far` and `far2`, have the same features.

use anyhow::{Context, Result, bail, ensure};

use super::grammar::{Alternative, Article, Condition, Constraint, Entry, Grammar, List, Rule, Slot, Speaker, Symbol};

impl Grammar {
    /// Reads a grammar from its parts, each with a name for error messages.
    ///
    /// # Errors
    /// A line cannot be read, or names a rule or list that is not there.
    pub(super) fn parse(sources: &[(&str, &str)]) -> Result<Grammar> {
        let mut grammar = Grammar::default();
        let lines = || {
            sources.iter().flat_map(|&(name, source)| {
                source.lines().enumerate().map(move |(index, line)| (format!("{name}, line {}", index + 1), line))
            })
        };
        // Lists and the names of rules come first, so that a phrasing may use those of any file.
        let mut in_list = false;
        for (place, line) in lines().filter(|(_, line)| !is_comment(line)) {
            if let Some(header) = line.strip_prefix('@') {
                in_list = true;
                grammar.add_list(header).context(place)?;
            } else if !line.starts_with(' ') {
                in_list = false;
                ensure!(grammar.rule(line.trim()).is_none(), "{place}: the rule `{line}` is there already");
                grammar.rules.push(Rule { name: line.trim().to_owned(), alternatives: Vec::new() });
            } else if in_list {
                grammar.add_entries(line.trim()).context(place)?;
            }
        }
        let mut rule = None;
        for (place, line) in lines().filter(|(_, line)| !is_comment(line)) {
            match rule {
                _ if !line.starts_with(' ') => rule = grammar.rule(line.trim()),
                Some(rule) => {
                    let alternative = grammar.alternative(line.strip_prefix("  ").unwrap_or(line)).context(place)?;
                    grammar.rules[rule].alternatives.push(alternative);
                }
                None => {}
            }
        }
        if let Some(rule) = grammar.rules.iter().find(|rule| rule.alternatives.is_empty()) {
            bail!("the rule `{}` has no alternatives", rule.name);
        }
        Ok(grammar)
    }

    fn add_list(&mut self, header: &str) -> Result<()> {
        let mut columns: Vec<String> = header.split_whitespace().map(str::to_owned).collect();
        let Some(first) = columns.first_mut() else { bail!("a list has no name") };
        let repeats = first.ends_with('*');
        *first = first.trim_end_matches('*').to_owned();
        for column in &columns {
            ensure!(self.column(column).is_none(), "the column `{column}` is there already");
        }
        self.lists.push(List { columns, entries: Vec::new(), repeats });
        Ok(())
    }

    /// Adds the entries of a line to the last list.
    fn add_entries(&mut self, line: &str) -> Result<()> {
        let (features, entries) = match line.strip_prefix('[') {
            Some(rest) => rest.split_once(']').context("a `[` is not closed")?,
            None => ("", line),
        };
        let constraints = features.split_whitespace().map(|text| self.constraint(text)).collect::<Result<Vec<_>>>()?;
        let Some(list) = self.lists.last_mut() else { bail!("entries without a list") };
        for entry in entries.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let forms: Vec<String> = entry.split('/').map(str::to_owned).collect();
            let (n_forms, n_columns) = (forms.len(), list.columns.len());
            ensure!(n_forms == n_columns, "`{entry}` has {n_forms} forms, but the list has {n_columns} columns");
            let is_same = |other: &Entry| other.forms == forms && other.constraints == constraints;
            ensure!(!list.entries.iter().any(is_same), "`{entry}` is there already");
            list.entries.push(Entry { forms, constraints: constraints.clone() });
        }
        Ok(())
    }

    /// Reads `feature=value/value`.
    fn constraint(&mut self, text: &str) -> Result<Constraint> {
        let (name, values) = text.split_once('=').with_context(|| format!("`{text}` is not `feature=value`"))?;
        let feature = number(&mut self.features, |(known, _)| known == name, || (name.to_owned(), Vec::new()));
        let known = &mut self.features[feature].1;
        let mut bits = 0;
        for value in values.split('/') {
            let value = number(known, |known| known == value, || value.to_owned());
            ensure!(value < 64, "the feature `{name}` has more than 64 values");
            bits |= 1 << value;
        }
        Ok(Constraint { feature, values: bits })
    }

    fn role(&mut self, name: &str) -> usize {
        let stem = |name: &str| name.trim_end_matches(|last: char| last.is_ascii_digit()).to_owned();
        let first = self.roles.iter().position(|(known, _)| stem(known) == stem(name)).unwrap_or(self.roles.len());
        number(&mut self.roles, |(known, _)| known == name, || (name.to_owned(), first))
    }

    fn alternative(&mut self, text: &str) -> Result<Alternative> {
        let mut rest = text;
        let weight = weight(&mut rest)?;
        let alternative = self.symbols(&mut rest, weight)?;
        ensure!(rest.is_empty(), "nothing opens the bracket before `{rest}`");
        Ok(alternative)
    }

    /// Reads up to the end or a `|` or `]`, which stays in `rest`.
    fn symbols(&mut self, rest: &mut &str, weight: u64) -> Result<Alternative> {
        let mut conditions = Vec::new();
        let mut symbols = Vec::new();
        while let Some(first) = rest.chars().next().filter(|first| !"|]".contains(*first)) {
            match first {
                '{' => {
                    let (inside, after) = rest[1..].split_once('}').context("a `{` is not closed")?;
                    *rest = after;
                    if let Some(condition) = inside.strip_prefix('?') {
                        ensure!(symbols.is_empty(), "a condition stands at the beginning");
                        conditions.push(self.condition(condition)?);
                    } else {
                        symbols.push(self.braces(inside).with_context(|| format!("in `{{{inside}}}`"))?);
                    }
                }
                '<' => {
                    let (name, after) = rest[1..].split_once('>').context("a `<` is not closed")?;
                    *rest = after;
                    symbols.push(Symbol::Rule(self.rule(name).with_context(|| format!("there is no rule `{name}`"))?));
                }
                '[' => symbols.push(self.brackets(rest)?),
                _ => {
                    let end = rest.find(['{', '<', '[', '|', ']']).unwrap_or(rest.len());
                    let (text, after) = rest.split_at(end);
                    symbols.push(Symbol::Text(text.replace("\\n", "\n")));
                    *rest = after;
                }
            }
        }
        Ok(Alternative { weight, conditions, symbols })
    }

    /// Reads `[one|other]` as a rule without a name.
    fn brackets(&mut self, rest: &mut &str) -> Result<Symbol> {
        let mut alternatives = Vec::new();
        while !rest.starts_with(']') || alternatives.is_empty() {
            ensure!(rest.starts_with(['[', '|']), "a `[` is not closed");
            *rest = &rest[1..];
            let weight = weight(rest)?;
            alternatives.push(self.symbols(rest, weight)?);
        }
        *rest = &rest[1..];
        self.rules.push(Rule { name: String::new(), alternatives });
        Ok(Symbol::Rule(self.rules.len() - 1))
    }

    fn condition(&mut self, text: &str) -> Result<Condition> {
        let (role, constraint) = text.split_once(' ').context("a condition is `role feature=value`")?;
        let role = self.role(role);
        Ok(Condition { role: self.roles[role].1, constraint: self.constraint(constraint)? })
    }

    /// Reads the contents of braces.
    fn braces(&mut self, text: &str) -> Result<Symbol> {
        match text {
            ">user" => return Ok(Symbol::Message(Speaker::User)),
            ">assistant" => return Ok(Symbol::Message(Speaker::Assistant)),
            _ => {}
        }
        if let Some(label) = text.strip_prefix('#') {
            let (key, value) = label.split_once(' ').context("a label is `key value`")?;
            return Ok(Symbol::Label { key: key.to_owned(), value: value.to_owned() });
        }
        let (is_key, text) = text.strip_prefix('=').map_or((false, text), |text| (true, text));
        let (article, text) = match text.split_once(' ') {
            Some(("a", text)) => (Article::Small, text),
            Some(("A", text)) => (Article::Capital, text),
            Some(_) => bail!("only `a` or `A` may be before a role"),
            None => (Article::None, text),
        };
        let (role, column) = text.split_once('.').context("a slot is `role.column`")?;
        let is_capital = column.starts_with(|first: char| first.is_ascii_uppercase());
        let (list, column) =
            self.column(&column.to_lowercase()).with_context(|| format!("no list has a column `{column}`"))?;
        let role = (role != "_").then(|| self.role(role));
        Ok(Symbol::Slot(Slot { role, list, column, article, is_capital, is_key }))
    }
}

/// Reads a weight such as `*3 `, if there is one.
fn weight(rest: &mut &str) -> Result<u64> {
    let Some((weight, after)) = rest.strip_prefix('*').and_then(|rest| rest.split_once(' ')) else { return Ok(1) };
    *rest = after;
    weight.parse().with_context(|| format!("`{weight}` is not a weight"))
}

fn is_comment(line: &str) -> bool {
    line.trim().is_empty() || line.starts_with('#')
}

/// The index of the element for which `is_it` is true; `make` adds one if there is none.
fn number<T>(known: &mut Vec<T>, is_it: impl Fn(&T) -> bool, make: impl FnOnce() -> T) -> usize {
    known.iter().position(is_it).unwrap_or_else(|| {
        known.push(make());
        known.len() - 1
    })
}
