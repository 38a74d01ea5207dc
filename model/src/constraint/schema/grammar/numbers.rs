//! Numbers within bounds, as grammars of the library.

use serde_json::{Number, json};

use super::{
    super::{
        GrammarError, WHITESPACE,
        values::{Numbers, decimal},
    },
    Writer,
    rules::Symbol,
};

/// Numbers without bounds have at most this many digits on either side of the point, since some models never stop.
const WHOLE: &str = "-?(?:0|[1-9][0-9]{0,29})";

impl Writer<'_> {
    /// The numbers of a set, as alternatives.
    pub(super) fn numbers(&mut self, numbers: &Numbers) -> Result<Vec<Symbol>, GrammarError> {
        let Numbers { is_integer, is_fraction, least, most, multiples, .. } = numbers;
        let is_plain = least.is_none() && most.is_none() && multiples.is_empty();
        if *is_fraction {
            if !is_plain {
                let what = "cannot be enforced: it asks for numbers that are not whole, within bounds";
                return Err(GrammarError::whole(what));
            }
            // So few digits that the number is not whole as an f64.
            let fraction = r"/-?(?:(?:0|[1-9][0-9]{0,8})\.[0-9]{0,5}|[0-9]{1,3}\.[0-9]{0,11})[1-9]/";
            return Ok(vec![self.defined(fraction.replace("[0-9]{1,3}", "(?:0|[1-9][0-9]{0,2})"))]);
        }
        if is_plain && *is_integer {
            return Ok(vec![self.defined(format!("/{WHOLE}/"))]);
        }
        if is_plain {
            let fraction = r"(?:\.[0-9]{1,30})?";
            // Larger exponents only where the number stays one of f64.
            return Ok(vec![self.defined(format!(
                "/{WHOLE}{fraction}(?:[eE][+-]?[0-9]{{1,2}})?|-?[0-9]{fraction}[eE][+-]?(?:[12][0-9]{{2}}|30[0-7])/"
            ))]);
        }
        let mut schema = json!({
            "type": if *is_integer { "integer" } else { "number" },
            "x-guidance": { "whitespace_pattern": WHITESPACE },
        });
        for (bound, inclusive, exclusive) in
            [(least, "minimum", "exclusiveMinimum"), (most, "maximum", "exclusiveMaximum")]
        {
            // Bounds beyond 64-bit integers, which schema generators write, are beyond what the library can compile.
            if let Some((bound, is_excluded)) = bound.filter(|(bound, _)| bound.abs() < 9.2e18) {
                let number = if bound.fract() == 0.0 { json!(bound as i64) } else { json!(bound) };
                schema[if is_excluded { exclusive } else { inclusive }] = number;
            }
        }
        if multiples.is_empty() {
            return Ok(vec![Symbol::Nested(format!("%json {schema}"))]);
        }
        let Some((factor, n_decimals)) =
            common_multiple(multiples).filter(|(factor, _)| *factor <= u128::from(u32::MAX))
        else {
            return Err(GrammarError::whole("must have values of `multipleOf` with a smaller common multiple"));
        };
        // The library matches numbers with exactly as many decimals as the factor has: those with fewer are apart.
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
}

fn greatest_divisor(left: u128, right: u128) -> u128 {
    if right == 0 { left } else { greatest_divisor(right, left % right) }
}

/// The least number that is a multiple of all of these, as digits and how many of them are decimals.
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
