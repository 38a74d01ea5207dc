//! Calls that are exactly the texts of a format, in any white space, with names and arguments between them.

use super::{
    call_arguments::{Arguments, Call, Cursor, Function},
    call_format::CallFormat,
    mismatch::Mismatch,
};

/// A text after the mark `opening`, or without a mark.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FramedText<'a> {
    pub(crate) text: &'a str,
    pub(crate) opening: Option<&'static str>,
    /// Whether the model has ended its answer.
    pub(crate) is_over: bool,
}

impl CallFormat {
    /// The text before the first function's name.
    pub(crate) fn head(&self) -> String {
        format!("{}{}", self.around_all[0], self.around_parts[0])
    }

    /// The rest of the [head](Self::head) after a mark.
    pub(crate) fn after_opening(&self, opening: Option<&str>) -> String {
        let head = self.head();
        let Some(opening) = opening else { return head };
        let opening =
            if head.contains(opening) || self.first_openings.contains(&opening) { opening } else { self.first() };
        // An optional mark is not in the head.
        head.find(opening).map_or_else(|| head.clone(), |at| head[at + opening.len()..].to_owned())
    }

    /// The mark that is written.
    pub(crate) fn first(&self) -> &'static str {
        self.openings.first().copied().unwrap_or_default()
    }

    /// The calls that `given` starts with, and the text after them.
    ///
    /// # Errors
    /// The text does not start with calls.
    pub(crate) fn framed_calls<'a>(
        &self,
        arguments: Arguments,
        functions: &[Function],
        given: FramedText<'a>,
    ) -> Result<(Vec<Call>, &'a str), Mismatch> {
        let mut cursor = Cursor::new(given.text);
        let mut calls = Vec::new();
        let closing = self.closing.unwrap_or_default();
        let unclosed = |text: &'static str| text.strip_suffix(closing).unwrap_or(text);
        let ([_, last], [before, _, after]) = (self.around_all, self.around_parts);
        cursor.expect(&self.after_opening(given.opening))?;
        loop {
            let function = cursor.function(functions)?;
            self.pass_between(&mut cursor)?;
            let arguments = arguments.read(&mut cursor, function)?;
            let ended = match unclosed(after).trim() {
                "" if !after.is_empty() => Cursor::new(cursor.rest).expect(after),
                _ => cursor.expect(unclosed(after)),
            };
            calls.push(Call { name: function.name.clone(), arguments });
            if given.is_over && cursor.rest.trim().is_empty() {
                return Ok((calls, ""));
            }
            ended?;
            if !self.has_group() {
                return Ok((calls, cursor.rest));
            }
            let group_end = unclosed(last);
            if !group_end.trim().is_empty() && cursor.accepts(group_end)? {
                return Ok((calls, cursor.rest));
            }
            let mut ahead = cursor;
            if group_end.trim().is_empty() && ahead.accepts(closing)? {
                return Ok((calls, cursor.rest));
            }
            if !self.separator.trim().is_empty() {
                cursor.expect(self.separator)?;
            }
            match cursor.expect(before) {
                // The marks of the group are over without the last one.
                Err(Mismatch::Other) if group_end.trim().is_empty() => return Ok((calls, ahead.rest)),
                other => other?,
            }
            cursor.skip_blanks();
            if cursor.rest.is_empty() {
                return Err(Mismatch::Cut { n_json: 0 });
            }
        }
    }

    /// Passes over the text between a name and the arguments.
    fn pass_between(&self, cursor: &mut Cursor<'_>) -> Result<(), Mismatch> {
        let mut is_cut = false;
        for between in self.betweens() {
            match cursor.accepts(between) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(_) => is_cut = true,
            }
        }
        Err(if is_cut { Mismatch::Cut { n_json: 0 } } else { Mismatch::Other })
    }
}
