//! Reads the text of a kernel, generic MLIR as libtpu reads it, into operations.
//!
//! Entry point: [`parse`]. The syntax is that of the
//! [language reference](https://mlir.llvm.org/docs/LangRef/#generic-operation-format), as far as kernels use it.

use std::collections::HashMap;

use super::super::value::{Element, Space, Type};

/// The prefix of the operations inside the module.
const DIALECT: &str = "stable_mosaic.";

/// An operation, with the operations inside of it.
#[derive(Debug, Clone)]
pub(super) struct Operation {
    /// The name without the dialect, such as `arith.addi`.
    pub(super) name: String,
    /// The numbers of the operands, as in `%12`.
    pub(super) operands: Vec<usize>,
    pub(super) types: Vec<Type>,
    pub(super) attributes: HashMap<String, String>,
    pub(super) blocks: Vec<Block>,
    /// The number and the type of the result.
    pub(super) result: Option<(usize, Type)>,
    /// For an operation changed on purpose: the operand to which 1 is added, modulo a number.
    pub(super) skew: Option<(usize, i64)>,
}

/// Operations in order, with the numbers and types of the block's arguments.
#[derive(Debug, Clone, Default)]
pub(super) struct Block {
    pub(super) arguments: Vec<(usize, Type)>,
    pub(super) operations: Vec<Operation>,
}

/// Text that was read up to an offset.
struct Reader<'a> {
    text: &'a str,
    at: usize,
}

/// Returns the module of `text`.
pub(super) fn parse(text: &str) -> Operation {
    let mut reader = Reader { text, at: 0 };
    let module = reader.operation();
    assert_eq!(reader.rest(), "", "nothing follows the module");
    module
}

impl Operation {
    /// Returns an attribute.
    pub(super) fn attribute(&self, name: &str) -> &str {
        self.attributes.get(name).unwrap_or_else(|| panic!("{} has no attribute {name}", self.name))
    }

    /// Returns the integers of an attribute such as `array<i64: 1, 2>`, `[1, 2]` or `1 : i64`.
    pub(super) fn integers(&self, name: &str) -> Vec<usize> {
        let list = self.attribute(name).trim_start_matches("array<i64:").trim_start_matches("array<i32:");
        let list = list.split(" : ").next().unwrap_or(list);
        let numbers = list.split(|c: char| !c.is_ascii_digit()).filter(|number| !number.is_empty());
        numbers.map(|number| number.parse().unwrap()).collect()
    }

    /// Calls `visit` with this operation and all inside of it.
    pub(super) fn visit(&mut self, visit: &mut dyn FnMut(&mut Operation)) {
        visit(self);
        let inside = self.blocks.iter_mut().flat_map(|block| block.operations.iter_mut());
        inside.for_each(|operation| operation.visit(visit));
    }
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        self.text[self.at..].trim_start()
    }

    /// Skips `token` if the text goes on with it.
    fn skips(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        if found {
            self.at = self.text.len() - self.rest().len() + token.len();
        }
        found
    }

    fn expect(&mut self, token: &str) {
        assert!(self.skips(token), "expected {token:?}: {:.80}", self.rest());
    }

    /// Returns the text up to one of `ends` outside of brackets.
    fn until(&mut self, ends: &str) -> &'a str {
        let rest = self.rest();
        let mut depth = 0;
        let mut before = ' ';
        for (offset, c) in rest.char_indices() {
            let is_arrow = before == '-' && c == '>';
            if depth == 0 && !is_arrow && ends.contains(c) {
                self.at = self.text.len() - rest.len() + offset;
                return rest[..offset].trim();
            }
            match c {
                '<' | '(' | '[' | '{' => depth += 1,
                '>' | ')' | ']' | '}' if !is_arrow => depth -= 1,
                _ => (),
            }
            before = c;
        }
        panic!("expected one of {ends:?}: {rest:.80}")
    }

    /// Returns the texts up to the bracket `close`, which commas separate, and skips the bracket.
    fn list(&mut self, close: &str) -> Vec<&'a str> {
        let mut items = Vec::new();
        while !self.skips(close) {
            items.push(self.until(&format!(",{close}")));
            self.skips(",");
        }
        items
    }

    fn operation(&mut self) -> Operation {
        let result = self.rest().starts_with('%').then(|| number(self.until("=")));
        if result.is_some() {
            self.expect("=");
        }
        self.expect("\"");
        let name = self.until("\"");
        self.expect("\"");
        self.expect("(");
        let operands = self.list(")").into_iter().map(number).collect();
        let mut blocks = Vec::new();
        if self.skips("(") {
            loop {
                self.expect("{");
                blocks.push(self.block());
                self.expect("}");
                if !self.skips(",") {
                    break;
                }
            }
            self.expect(")");
        }
        let attributes = if self.skips("{") { self.list("}") } else { Vec::new() };
        let attribute = |text: &str| text.split_once(" = ").map(|(name, value)| (name.to_owned(), value.to_owned()));
        let attributes = attributes.into_iter().map(|text| attribute(text).expect("a name and a value")).collect();
        self.expect(":");
        self.expect("(");
        let types = self.list(")").into_iter().map(type_of).collect();
        self.expect("->");
        let result = result.map(|number| (number, type_of(self.until("\n"))));
        if result.is_none() {
            self.expect("()");
        }
        let name = name.strip_prefix(DIALECT).or_else(|| (name == "builtin.module").then_some(name));
        let name = name.expect("operations are of the dialect").to_owned();
        Operation { name, operands, types, attributes, blocks, result, skew: None }
    }

    fn block(&mut self) -> Block {
        let mut block = Block::default();
        if self.skips("^bb0(") {
            let argument = |text: &str| {
                let (name, ty) = text.split_once(": ").expect("an argument has a type");
                (number(name), type_of(ty))
            };
            block.arguments = self.list(")").into_iter().map(argument).collect();
            self.expect(":");
        }
        while !self.rest().starts_with('}') {
            block.operations.push(self.operation());
        }
        block
    }
}

fn number(name: &str) -> usize {
    name.trim().strip_prefix('%').and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{name:?}: no value"))
}

fn type_of(text: &str) -> Type {
    let inside = |prefix: &str| text.strip_prefix(prefix).and_then(|rest| rest.strip_suffix('>'));
    if let Some(shape) = inside("vector<") {
        let (dims, element) = shape_of(shape);
        return Type::vector(dims, element);
    }
    let Some(array) = inside("memref<") else { return Type::Scalar(element_of(text)) };
    let (shape, space) = array.split_once(", ").expect("an array has a memory");
    let (dims, element) = shape_of(shape);
    let space = match space {
        "#tpu.memory_space<smem>" => Space::Smem,
        "#tpu.memory_space<vmem>" => Space::Vmem,
        "#tpu.memory_space<hbm>" => Space::Hbm,
        "#tpu.memory_space<any>" => Space::Any,
        "#tpu.memory_space<semaphore_mem>" => Space::Semaphores,
        _ => panic!("{space:?} is no memory"),
    };
    Type::array(dims, element, space)
}

fn shape_of(text: &str) -> (Vec<usize>, Element) {
    let mut dims = Vec::new();
    let mut rest = text;
    while let Some((size, after)) = rest.split_once('x')
        && let Ok(size) = size.parse()
    {
        dims.push(size);
        rest = after;
    }
    (dims, element_of(rest))
}

fn element_of(text: &str) -> Element {
    match text {
        "i1" => Element::I1,
        "i32" => Element::I32,
        "index" => Element::Index,
        "bf16" => Element::Bf16,
        "f32" => Element::F32,
        "!tpu.dma_semaphore" => Element::Semaphore,
        _ => panic!("{text:?} is no type"),
    }
}
