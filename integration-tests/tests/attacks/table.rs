//! The table of attacks. Their requests are in `requests.rs`.

use std::time::Duration;

use crate::attack::{Attack, Manner};
use crate::requests;

const NO_PAUSE: Duration = Duration::ZERO;
const SHORT_PAUSE: Duration = Duration::from_millis(100);

/// All attacks, in the order in which they run.
pub(crate) const TABLE: &[Attack] = &[
    Attack { pause: SHORT_PAUSE, ..Attack::new("extreme-parameters", requests::extreme_parameters) },
    Attack { connections: 3, ..Attack::new("nested-grammars", requests::nested_grammars) },
    Attack { pause: SHORT_PAUSE, ..Attack::new("costly-intersections", requests::costly_intersections) },
    Attack { connections: 6, ..Attack::new("long-stop-strings", requests::long_stop_strings) },
    Attack {
        connections: 8,
        manner: Manner::ReadSlowly { bytes_per_second: 32_000 },
        ..Attack::new("slow-readers", requests::long_answers)
    },
    Attack {
        connections: 8,
        manner: Manner::ReadSlowly { bytes_per_second: 4_000 },
        ..Attack::new("slowest-readers", requests::long_answers)
    },
    Attack { connections: 8, manner: Manner::ReadNothing, ..Attack::new("absent-readers", requests::long_answers) },
    Attack { pause: NO_PAUSE, is_log_unread: true, ..Attack::new("unread-log", requests::short_requests) },
    Attack { connections: 300, manner: Manner::ReadNothing, ..Attack::new("unread-tokens", requests::long_texts) },
    Attack { connections: 12, ..Attack::new("long-texts", requests::long_texts) },
    Attack { connections: 24, ..Attack::new("many-messages", requests::many_messages) },
    Attack::new("many-choices", requests::many_choices),
    Attack { connections: 32, ..Attack::new("wide-expressions", requests::wide_expressions) },
    Attack { connections: 200, manner: Manner::SendHalf, ..Attack::new("half-sent-bodies", requests::large_bodies) },
    Attack { connections: 400, manner: Manner::SendHead, ..Attack::new("half-sent-heads", requests::short_requests) },
    Attack { connections: 12, ..Attack::new("large-bodies", requests::large_bodies) },
    Attack { connections: 8, ..Attack::new("many-properties", requests::many_properties) },
    Attack {
        connections: 4,
        pause: SHORT_PAUSE,
        manner: Manner::LeaveWithByte,
        ..Attack::new("leaving-with-a-byte", requests::half_of_the_rows)
    },
    Attack {
        flags: &[("--api-key", "greedy,ordinary")],
        api_keys: Some(["greedy", "ordinary"]),
        pause: NO_PAUSE,
        ..Attack::new("one-key-takes-all", requests::all_rows_of_a_key)
    },
];
