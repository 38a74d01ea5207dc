//! Inserts counting instructions into a compiled template.
//!
//! After each instruction that creates a value, a call passes the value to [`Budget`](super::budget::Budget); before
//! each that can create a large value from small ones, a call passes its arguments. The output is the same. The
//! engine's version is pinned, because its instructions are not a public interface.

use std::collections::BTreeMap;

use minijinja::{
    Template, Value,
    machinery::{Instruction, Instructions, get_compiled_template},
};

use super::budget::{CHECKS, COMPARED, JOINED, KEPT, MADE, MULTIPLIED, RETURNED, SPREAD};

/// The instructions of a template and of its blocks, with counting instructions.
pub(super) type Watched<'source> = (Instructions<'source>, BTreeMap<&'source str, Instructions<'source>>);

pub(super) fn watched<'source>(template: &Template<'source, 'source>) -> Watched<'source> {
    let compiled = get_compiled_template(template);
    let blocks = compiled.blocks.iter().map(|(name, block)| (*name, rewritten(block)));
    (rewritten(&compiled.instructions), blocks.collect())
}

fn rewritten<'source>(old: &Instructions<'source>) -> Instructions<'source> {
    let all = || (0..).map_while(|at| Some((at, old.get(at)?)));
    // The new position of each instruction, or of the call inserted before it.
    let mut places = vec![0];
    for (_, instruction) in all() {
        let next = places.last().copied().unwrap_or(0) + with_checks(instruction).len() as u32;
        places.push(next);
    }
    let place = |old: u32| places.get(old as usize).copied().unwrap_or(old);
    let mut new = Instructions::new(old.name(), old.source());
    for (at, instruction) in all() {
        let line = old.get_line(at).unwrap_or(1) as u16;
        for mut instruction in with_checks(instruction) {
            match &mut instruction {
                Instruction::Iterate(target)
                | Instruction::Jump(target)
                | Instruction::JumpIfFalse(target)
                | Instruction::JumpIfFalseOrPop(target)
                | Instruction::JumpIfTrueOrPop(target)
                | Instruction::BuildMacro(_, target, _) => *target = place(*target),
                _ => {}
            }
            new.add_with_line(instruction, line);
        }
    }
    new
}

/// An instruction with the calls before and after it.
fn with_checks<'source>(instruction: &Instruction<'source>) -> Vec<Instruction<'source>> {
    use Instruction::{CallFunction, UnpackList};
    let own = instruction.clone();
    let made = CallFunction(MADE, Some(1));
    match instruction {
        // Before the formatter.
        Instruction::EmitRaw(text) => vec![Instruction::LoadConst(Value::from(*text)), Instruction::Emit],
        Instruction::Add | Instruction::StringConcat => vec![CallFunction(JOINED, Some(2)), UnpackList(2), own, made],
        Instruction::Mul => vec![CallFunction(MULTIPLIED, Some(2)), UnpackList(2), own, made],
        Instruction::SetAttr(_) => vec![CallFunction(KEPT, Some(2)), UnpackList(2), own],
        Instruction::ApplyFilter(name, Some(n), _) | Instruction::CallMethod(name, Some(n)) => {
            let check = CHECKS.iter().find(|(known, _)| known == name).map(|(_, check)| *check);
            let before = check.map(|check| [CallFunction(check, Some(*n)), UnpackList(usize::from(*n))]);
            before.into_iter().flatten().chain([own, made]).collect()
        }
        Instruction::In
        | Instruction::Eq
        | Instruction::Ne
        | Instruction::Lt
        | Instruction::Lte
        | Instruction::Gt
        | Instruction::Gte
        | Instruction::CompareAndPreserve(_) => vec![CallFunction(COMPARED, Some(2)), UnpackList(2), own],
        Instruction::PerformTest(_, Some(n), _) => {
            vec![CallFunction(COMPARED, Some(*n)), UnpackList(usize::from(*n)), own]
        }
        // Arguments from an unpacked list cannot be checked.
        Instruction::ApplyFilter(_, None, _)
        | Instruction::CallMethod(_, None)
        | Instruction::PerformTest(_, None, _) => {
            vec![CallFunction(SPREAD, None), own]
        }
        Instruction::CallFunction(..) => vec![own, CallFunction(RETURNED, Some(1))],
        Instruction::CallObject(_)
        | Instruction::BuildMap(_)
        | Instruction::BuildList(_)
        | Instruction::BuildTuple(_)
        | Instruction::Slice
        | Instruction::EndCapture => vec![own, made],
        _ => vec![own],
    }
}
