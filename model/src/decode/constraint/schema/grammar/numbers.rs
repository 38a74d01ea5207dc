//! Numbers within bounds: as regular expressions, or with `multipleOf` as grammars of the library.

use serde_json::{Number, json};

use super::{
    super::{
        GrammarError, WHITESPACE,
        terminal::have_no_text_in_common,
        values::{Numbers, decimal},
    },
    Writer,
    range::{Signed, within},
    rules::Symbol,
};

/// Numbers have at most 30 digits on either side of the point, since some models never stop.
const WHOLE: &str = "(?:0|[1-9][0-9]{0,29})";
const FRACTION: &str = r"(?:\.[0-9]{1,30})?";
/// Numbers that are not whole, with so few digits that they are not whole as f64 either.
const NOT_WHOLE: &str = r"(?:(?:0|[1-9][0-9]{0,8})\.[0-9]{0,5}|(?:0|[1-9][0-9]{0,2})\.[0-9]{0,11})[1-9]";

/// Multiples are within these bounds: the library compiles larger ones only without bounds, and models might then never
/// stop.
const MOST_MULTIPLE: f64 = 999_999_999_999_999_999.0;

impl Writer<'_> {
    /// The numbers of a set, as alternatives.
    pub(super) fn numbers(&mut self, numbers: &Numbers) -> Result<Vec<Symbol>, GrammarError> {
        let Numbers { is_integer, is_fraction, least, most, multiples, .. } = numbers;
        let is_plain = least.is_none() && most.is_none();
        let form = match (is_integer, is_fraction) {
            (true, _) => WHOLE.to_owned(),
            (_, true) => NOT_WHOLE.to_owned(),
            _ => format!("{WHOLE}{FRACTION}"),
        };
        match multiples.as_slice() {
            [] if is_plain && (*is_integer || *is_fraction) => return Ok(vec![self.defined(format!("/-?{form}/"))]),
            // Larger exponents only where the number stays one of f64.
            [] if is_plain => {
                return Ok(vec![self.defined(format!(
                    "/-?{form}(?:[eE][+-]?[0-9]{{1,2}})?|-?[0-9]{FRACTION}[eE][+-]?(?:[12][0-9]{{2}}|30[0-7])/"
                ))]);
            }
            [] => return self.bounded(&form, within(*least, *most, *is_integer)),
            _ if *is_fraction => {
                let what = "cannot be enforced: it asks for numbers that are not whole, with `multipleOf`";
                return Err(GrammarError::whole(what));
            }
            _ => {}
        }
        let mut schema = json!({
            "type": if *is_integer { "integer" } else { "number" },
            "x-guidance": { "whitespace_pattern": WHITESPACE },
        });
        for (bound, most, inclusive, exclusive) in [
            (least, -MOST_MULTIPLE, "minimum", "exclusiveMinimum"),
            (most, MOST_MULTIPLE, "maximum", "exclusiveMaximum"),
        ] {
            let (bound, is_excluded) = bound.filter(|(bound, _)| bound.abs() < MOST_MULTIPLE).unwrap_or((most, false));
            let number = if bound.fract() == 0.0 { json!(bound as i64) } else { json!(bound) };
            schema[if is_excluded { exclusive } else { inclusive }] = number;
        }
        let Some((factor, n_decimals)) =
            common_multiple(multiples).filter(|(factor, _)| *factor <= u128::from(u32::MAX))
        else {
            return Err(GrammarError::whole("must have values of `multipleOf` with a smaller common multiple"));
        };
        // The library matches numbers with exactly as many decimals as the factor has: numbers with fewer decimals are
        // handled separately.
        let mut symbols = Vec::new();
        for decimals in 0..=n_decimals {
            let factor = factor / greatest_divisor(factor, 10u128.pow(n_decimals - decimals));
            let mut schema = schema.clone();
            match decimals {
                0 => schema["type"] = json!("integer"),
                _ if *is_integer => break,
                _ => {}
            }
            schema["multipleOf"] = json!(factor as f64 / 10f64.powi(decimals as i32));
            symbols.push(Symbol::Nested(format!("%json {schema}")));
        }
        Ok(symbols)
    }

    /// Numbers of a form, without their sign, that are within bounds.
    fn bounded(&mut self, form: &str, signed: Vec<Signed>) -> Result<Vec<Symbol>, GrammarError> {
        let mut symbols = Vec::new();
        for Signed { sign, mut bounds } in signed {
            bounds.push(form.to_owned());
            if !have_no_text_in_common(&bounds).map_err(GrammarError::whole)? {
                let regexes: Vec<String> = bounds.iter().map(|regex| format!("/{sign}(?:{regex})/")).collect();
                symbols.push(self.defined(regexes.join(" & ")));
            }
        }
        Ok(symbols)
    }
}

fn greatest_divisor(left: u128, right: u128) -> u128 {
    if right == 0 { left } else { greatest_divisor(right, left % right) }
}

/// The least common multiple of these numbers, as digits and the number of decimals among them.
fn common_multiple(numbers: &[Number]) -> Option<(u128, u32)> {
    let mut all = numbers.iter().map(decimal);
    all.next()?.and_then(|first| {
        all.try_fold(first, |(common, scale), number| {
            let (digits, decimals) = number?;
            let most = scale.max(decimals);
            let common = common.checked_mul(10u128.checked_pow(most - scale)?)?;
            let digits = digits.checked_mul(10u128.checked_pow(most - decimals)?)?;
            Some(((common / greatest_divisor(common, digits)).checked_mul(digits)?, most))
        })
    })
}
