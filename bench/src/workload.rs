//! The content of requests: lengths, words, conversations. With the same seed, new prompts and lengths are the same, in
//! whatever order requests are sent.

use std::str::FromStr;

use fastrand::Rng;
use serde::Serialize;

/// Short common words. Most of them are a single token in vocabularies for English.
const WORDS: [&str; 64] = [
    "the", "and", "you", "that", "was", "for", "are", "with", "his", "they", "one", "have", "this", "from", "had",
    "not", "but", "what", "all", "were", "when", "your", "can", "said", "there", "use", "each", "which", "she", "how",
    "their", "will", "other", "about", "out", "many", "then", "them", "these", "some", "her", "would", "make", "like",
    "him", "into", "time", "has", "look", "two", "more", "write", "see", "number", "way", "could", "people", "than",
    "first", "water", "been", "call", "who", "find",
];

/// A uniform distribution of lengths, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Distribution {
    least: u32,
    most: u32,
}

/// The error for a text that is not a distribution.
#[derive(Debug, thiserror::Error)]
#[error("must be a whole number from 1 to {}, or uniform:A..B with two such numbers, A <= B", u32::MAX)]
pub(crate) struct NotADistribution;

/// The settings from which all conversations are made.
#[derive(Debug)]
pub(crate) struct Workload {
    /// The prompts from a file. If `None`, prompts are random words.
    pub(crate) prompts: Option<Vec<String>>,
    pub(crate) prompt_words: Distribution,
    pub(crate) output_tokens: Distribution,
    pub(crate) num_shared_words: u32,
    pub(crate) seed: u64,
}

/// A conversation between a client and the server: the text so far, and the state from which its next prompts are made.
#[derive(Debug)]
pub(crate) struct Conversation<'a> {
    workload: &'a Workload,
    rng: Rng,
    next_prompt: usize,
    text: String,
}

/// A request of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) prompt: String,
    /// The maximum number of tokens to generate.
    pub(crate) output_tokens: u32,
}

impl Distribution {
    pub(crate) fn sample(self, rng: &mut Rng) -> u32 {
        rng.u32(self.least..=self.most)
    }
}

impl FromStr for Distribution {
    type Err = NotADistribution;

    fn from_str(text: &str) -> Result<Self, NotADistribution> {
        let (least, most) = match text.strip_prefix("uniform:") {
            Some(range) => range.split_once("..").ok_or(NotADistribution)?,
            None => (text, text),
        };
        let parse = |number: &str| number.parse::<u32>().map_err(|_| NotADistribution);
        let (least, most) = (parse(least)?, parse(most)?);
        if least > 0 && least <= most { Ok(Self { least, most }) } else { Err(NotADistribution) }
    }
}

impl Workload {
    /// Returns the conversation `idx` of a run with `num_turns` requests per conversation.
    pub(crate) fn conversation(&self, idx: u64, num_turns: u32) -> Conversation<'_> {
        let prefix = words(&mut Rng::with_seed(self.seed), self.num_shared_words);
        let seed = self.seed ^ (idx + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let next_prompt = idx.wrapping_mul(num_turns.into()) as usize;
        Conversation { workload: self, rng: Rng::with_seed(seed), next_prompt, text: prefix }
    }
}

impl Conversation<'_> {
    /// Returns the next request, whose prompt is the conversation so far followed by a new prompt.
    pub(crate) fn next_turn(&mut self) -> Turn {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        match &self.workload.prompts {
            Some(prompts) => self.text.push_str(&prompts[self.next_prompt % prompts.len()]),
            None => {
                let num_words = self.workload.prompt_words.sample(&mut self.rng);
                self.text.push_str(&words(&mut self.rng, num_words));
            }
        }
        self.next_prompt += 1;
        let output_tokens = self.workload.output_tokens.sample(&mut self.rng);
        Turn { prompt: self.text.clone(), output_tokens }
    }

    /// Adds the answer of the server to the conversation.
    pub(crate) fn push_answer(&mut self, completion: &str) {
        self.text.push_str(completion);
    }
}

/// Returns a random time between two arrivals of a Poisson process, whose arrivals are independent.
///
/// # Panics
/// When the rate, in arrivals per second, is 0.
pub(crate) fn poisson_gap(per_second: f64, rng: &mut Rng) -> std::time::Duration {
    // `1 - u` is in (0, 1], so its logarithm is finite.
    let seconds = -(1.0 - rng.f64()).ln() / per_second;
    std::time::Duration::from_secs_f64(seconds)
}

fn words(rng: &mut Rng, num_words: u32) -> String {
    let words: Vec<&str> = (0..num_words).map(|_| WORDS[rng.usize(..WORDS.len())]).collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(num_shared_words: u32) -> Workload {
        Workload {
            prompts: None,
            prompt_words: "uniform:5..9".parse().unwrap(),
            output_tokens: "uniform:2..3".parse().unwrap(),
            num_shared_words,
            seed: 7,
        }
    }

    fn count(text: &str) -> usize {
        text.split_whitespace().count()
    }

    #[test]
    fn distributions_are_a_number_or_a_range() {
        for (text, least, most) in [("100", 100, 100), ("uniform:50..200", 50, 200)] {
            assert_eq!(text.parse::<Distribution>().unwrap(), Distribution { least, most });
        }
        for text in
            ["", "0", "-1", "1.5", "4294967296", "uniform:", "uniform:5", "uniform:9..5", "uniform:0..5", "normal:3..4"]
        {
            assert!(text.parse::<Distribution>().is_err(), "{text}");
        }
    }

    #[test]
    fn samples_reach_both_ends_and_nothing_beyond() {
        let (distribution, mut rng) = ("uniform:50..53".parse::<Distribution>().unwrap(), Rng::with_seed(1));
        let mut seen: Vec<u32> = (0..200).map(|_| distribution.sample(&mut rng)).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen, [50, 51, 52, 53]);
    }

    #[test]
    fn a_seed_gives_the_same_conversations_in_any_order() {
        let workload = workload(0);
        let first = |idx| workload.conversation(idx, 1).next_turn();
        let (zero, one) = (first(0), first(1));
        assert_ne!(zero.prompt, one.prompt);
        assert_eq!((first(1), first(0)), (one, zero));
    }

    #[test]
    fn conversations_share_their_prefix_only() {
        let workload = workload(20);
        let prompts = [0, 1].map(|idx| workload.conversation(idx, 1).next_turn().prompt);
        let lines = prompts.each_ref().map(|prompt| prompt.split_once('\n').unwrap());
        assert_eq!((lines[0].0, count(lines[0].0)), (lines[1].0, 20));
        assert_ne!(lines[0].1, lines[1].1);
        assert!((5..=9).contains(&count(lines[0].1)));
    }

    #[test]
    fn a_turn_begins_with_the_conversation_so_far() {
        let workload = workload(0);
        let mut conversation = workload.conversation(3, 2);
        let first = conversation.next_turn();
        conversation.push_answer(" answer");
        let second = conversation.next_turn();
        assert!(second.prompt.starts_with(&format!("{} answer\n", first.prompt)));
    }

    #[test]
    fn prompts_of_a_file_are_sent_in_their_order() {
        let prompts = Some(["a", "b", "c"].map(str::to_owned).to_vec());
        let workload = Workload { prompts, ..workload(0) };
        let sent: Vec<String> = (0..4).map(|idx| workload.conversation(idx, 1).next_turn().prompt).collect();
        assert_eq!(sent, ["a", "b", "c", "a"]);
        let mut second = workload.conversation(1, 2);
        assert_eq!([second.next_turn().prompt, second.next_turn().prompt], ["c", "c\na"]);
    }

    #[test]
    fn arrivals_have_the_rate_and_the_spread_of_a_poisson_process() {
        let mut rng = Rng::with_seed(5);
        let gaps: Vec<f64> = (0..20_000).map(|_| poisson_gap(50.0, &mut rng).as_secs_f64()).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean * 50.0 - 1.0).abs() < 0.03, "mean {mean}");
        assert!((variance.sqrt() / mean - 1.0).abs() < 0.05, "spread {}", variance.sqrt());
    }
}
