//! Fake programs. A program is a text of two numbers, of its parameters and of its outputs, or a StableHLO module of
//! which only the name and the signature of `main` are read. An output of the first kind has the bytes of an argument,
//! each plus one; one of the second kind is zero.

use std::sync::Arc;

use crate::ElementType;
use crate::element_type::Shape;

/// The bytes of aliased outputs of a program of two numbers.
const ALIAS_BYTES: usize = 8;

/// A compiled program.
#[derive(Clone)]
pub(super) struct FakeProgram {
    /// The text. That of a module begins with a line that lists the ids of the assigned devices.
    pub(super) text: String,
    pub(super) name: String,
    /// The ids of the devices that are assigned to the program. If empty, all devices of the client's process run it.
    pub(super) devices: Vec<i64>,
    pub(super) num_parameters: usize,
    pub(super) outputs: Vec<Output>,
    /// The bytes of the arguments whose memory outputs take over.
    pub(super) alias_bytes: usize,
}

/// The content of an output.
#[derive(Clone)]
pub(super) enum Output {
    Successor,
    Zeros(ElementType, Arc<[i64]>),
}

impl FakeProgram {
    /// Compiles `text` for the devices with these ids.
    pub(super) fn compile(text: &[u8], devices: &[i64]) -> Option<Self> {
        let text = String::from_utf8(text.to_vec()).ok()?;
        let Some((name, parameters, results)) = signature(&text) else { return Self::of_numbers(text) };
        let parameters: Vec<&str> = parameters.split("%arg").skip(1).collect();
        let aliased = parameters.iter().filter(|parameter| parameter.contains("tf.aliasing_output"));
        let alias_bytes = aliased.map(|parameter| bytes(&shapes(parameter)[0])).sum();
        let zeros = |shape: Shape| {
            let dims = shape.dims.iter().map(|size| i64::try_from(*size).expect("small"));
            Output::Zeros(shape.element_type, dims.collect())
        };
        let outputs = shapes(results).into_iter().map(zeros).collect();
        let (name, num_parameters) = (name.to_owned(), parameters.len());
        let text = format!("{devices:?}\n{text}");
        Some(Self { text, name, devices: devices.to_vec(), num_parameters, outputs, alias_bytes })
    }

    /// Loads the text of a compiled program.
    pub(super) fn load(text: &[u8]) -> Option<Self> {
        let whole = std::str::from_utf8(text).ok()?;
        let Some((devices, text)) = whole.strip_prefix('[').and_then(|rest| rest.split_once("]\n")) else {
            return Self::of_numbers(whole.to_owned());
        };
        let ids = devices.split(", ").filter(|id| !id.is_empty()).map(str::parse);
        Self::compile(text.as_bytes(), &ids.collect::<Result<Vec<i64>, _>>().ok()?)
    }

    fn of_numbers(text: String) -> Option<Self> {
        let (parameters, outputs) = text.split_once(' ')?;
        let (num_parameters, num_outputs) = (parameters.parse().ok()?, outputs.parse().ok()?);
        Some(Self {
            name: String::new(),
            devices: Vec::new(),
            num_parameters,
            outputs: vec![Output::Successor; num_outputs],
            alias_bytes: ALIAS_BYTES,
            text,
        })
    }
}

/// Returns the name of a module, and the texts of the parameters and results of its function `main`.
fn signature(text: &str) -> Option<(&str, &str, &str)> {
    let (name, _) = text.strip_prefix("module @")?.split_once(' ')?;
    let (_, main) = text.split_once("@main(")?;
    let (parameters, rest) = main.split_once(") -> (")?;
    let (results, _) = rest.split_once(") {")?;
    Some((name, parameters, results))
}

/// Returns the shapes of the types `tensor<2x3xf32>` in `text`.
fn shapes(text: &str) -> Vec<Shape> {
    let types = text.split("tensor<").skip(1).filter_map(|rest| rest.split_once('>'));
    types.map(|(ty, _)| shape(ty).expect("a type of the program is known")).collect()
}

fn shape(ty: &str) -> Option<Shape> {
    let (dims, element) = ty.rsplit_once('x').unwrap_or(("", ty));
    let element_type = ElementType::all().find(|known| known.to_string() == element)?;
    let dims = dims.split('x').filter(|size| !size.is_empty()).map(|size| size.parse().ok());
    Some(Shape { element_type, dims: dims.collect::<Option<Vec<usize>>>()? })
}

fn bytes(shape: &Shape) -> usize {
    shape.dims.iter().product::<usize>() * shape.element_type.host_bytes()
}
