//! Numeric parameters. Their values are neutral, ordinary, at the ends of their ranges, at special points of floats, or
//! out of range.

use crate::body::Body;
use crate::draw::Draw;

/// Special points of 32-bit floats: the zeros, numbers close to the smallest subnormal, the smallest normal and the
/// largest number, and numbers between them.
const EDGES: [f64; 15] =
    [0.0, -0.0, 1e-45, 1e-40, 1.2e-38, 1e-30, 1e-20, 1e-8, 1e-4, 0.01, 1.0, 100.0, 1e20, 1e38, 3.4e38];
/// Values of which each parameter rejects some.
const BEYOND: [f64; 15] =
    [0.0, -0.0, -1e-45, -1.0, -3.4e38, 1e-38, 0.0099, 1.000_001, 2.000_001, 100.001, 1e20, 1e38, 3.4e38, 1e39, 1e308];

/// A parameter that is a 32-bit float, with its neutral value and its ranges.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Float {
    name: &'static str,
    neutral: f64,
    /// The range that clients usually use.
    ordinary: [f64; 2],
    /// The accepted range, both ends included.
    legal: [f64; 2],
}

/// A parameter that is an integer, with legal values and values out of range.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Whole {
    pub(crate) name: &'static str,
    pub(crate) legal: &'static [i64],
    pub(crate) beyond: &'static [i64],
}

const TOP_P: Float = Float { name: "top_p", neutral: 1.0, ordinary: [0.5, 1.0], legal: [1e-45, 1.0] };
const MIN_P: Float = Float { name: "min_p", neutral: 0.0, ordinary: [0.0, 0.3], legal: [0.0, 1.0] };
const TYPICAL_P: Float = Float { name: "typical_p", neutral: 1.0, ordinary: [0.5, 1.0], legal: [1e-45, 1.0] };
const REPETITION_PENALTY: Float =
    Float { name: "repetition_penalty", neutral: 1.0, ordinary: [0.8, 1.5], legal: [0.01, 100.0] };
const FREQUENCY_PENALTY: Float =
    Float { name: "frequency_penalty", neutral: 0.0, ordinary: [-1.0, 1.0], legal: [-2.0, 2.0] };
const PRESENCE_PENALTY: Float =
    Float { name: "presence_penalty", neutral: 0.0, ordinary: [-1.0, 1.0], legal: [-2.0, 2.0] };
const TEMPERATURE: Float = Float { name: "temperature", neutral: 1.0, ordinary: [0.1, 2.0], legal: [1e-45, 3.4e38] };
/// On routes below `/v1` a temperature of zero means no sampling.
const TEMPERATURE_OR_ZERO: Float = Float { legal: [0.0, 3.4e38], ..TEMPERATURE };

/// The float parameters of TGI's routes.
pub(crate) const NATIVE: [Float; 7] =
    [TEMPERATURE, TOP_P, TYPICAL_P, MIN_P, REPETITION_PENALTY, FREQUENCY_PENALTY, PRESENCE_PENALTY];
/// The float parameters of OpenAI's routes.
pub(crate) const OPENAI: [Float; 6] =
    [TEMPERATURE_OR_ZERO, TOP_P, MIN_P, REPETITION_PENALTY, FREQUENCY_PENALTY, PRESENCE_PENALTY];
/// The float parameters of Anthropic's routes.
pub(crate) const ANTHROPIC: [Float; 2] = [TEMPERATURE_OR_ZERO, TOP_P];

impl Float {
    fn draw(&self, draw: &mut Draw) -> f64 {
        if draw.goes_too_far() {
            return draw.pick(&BEYOND);
        }
        let [low, high] = self.legal;
        match draw.below(10) {
            0 => self.neutral,
            1..=4 => draw.between(self.ordinary),
            5 => draw.pick(&self.legal),
            _ => Some(draw.pick(&EDGES)).filter(|edge| (low..=high).contains(edge)).unwrap_or(self.neutral),
        }
    }
}

impl Whole {
    /// Draws a value of the parameter.
    pub(crate) fn draw(&self, draw: &mut Draw) -> i64 {
        if draw.goes_too_far() { draw.pick(self.beyond) } else { draw.pick(self.legal) }
    }
}

/// Sets some of these float parameters.
pub(crate) fn set_floats(floats: &[Float], draw: &mut Draw, body: &mut Body) {
    for float in floats {
        if draw.has() {
            body.set(float.name, float.draw(draw));
        }
    }
}

/// Sets some of these integer parameters.
pub(crate) fn set_wholes(wholes: &[Whole], draw: &mut Draw, body: &mut Body) {
    for whole in wholes {
        if draw.has() {
            body.set(whole.name, whole.draw(draw));
        }
    }
}
