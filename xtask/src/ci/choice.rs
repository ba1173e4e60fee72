//! The units and cells that a run takes.

use matrix::{Choice, FORMS, Form};

use super::change::Change;
use super::families::{Families, Touched};
use super::steps::{LIBRARIES, Lane, Rank, STEPS, Step, Unit};

/// The time in seconds for what is drawn in each lane, on two cores of a Zen 4.
const DRAWN_SECONDS: u64 = 150;
/// The weight in the draw of a unit that the change is near to. Others have 1.
const NEAR: f64 = 8.0;

/// A unit of a step, or a cell of the matrix.
#[derive(Debug, Clone)]
pub(crate) enum Item {
    Unit(&'static Step, &'static Unit),
    Cell(&'static Form, String),
}

impl Item {
    fn lane(&self) -> Lane {
        match self {
            Self::Unit(step, _) => step.lane,
            Self::Cell(..) => Lane::Main,
        }
    }

    fn millis(&self) -> u64 {
        match self {
            Self::Unit(_, unit) => unit.seconds * 1000,
            // Two tests run at the same time.
            Self::Cell(form, _) => form.millis / 2,
        }
    }

    /// Returns the step of a unit, or the form of a cell, and the name in it.
    pub(crate) fn names(&self) -> (&'static str, &str) {
        match self {
            Self::Unit(step, unit) => (step.name, unit.name),
            Self::Cell(form, checkpoint) => (form.name, checkpoint),
        }
    }

    fn is_named(&self, name: &str) -> bool {
        let (step, unit) = self.names();
        name == step || name.split_once('/') == Some((step, unit))
    }
}

/// The units and cells that a run takes, and those that it leaves.
#[derive(Debug)]
pub(crate) struct Chosen {
    /// The commit, or a name for the choice.
    pub(crate) of: String,
    /// True if the commits before the newest are unknown, so that nothing counts as touched.
    pub(crate) is_shallow: bool,
    pub(crate) taken: Vec<(Choice, Item)>,
    pub(crate) left: Vec<Item>,
}

/// Everything that a run can take.
struct Pool {
    items: Vec<Item>,
    families: Families,
}

impl Pool {
    fn read() -> Result<Self, String> {
        Ok(Self { items: items()?, families: Families::read()? })
    }

    /// Returns the core, what the change touches, and a draw from the rest.
    fn choose(&self, change: &Change) -> Chosen {
        let touched = self.families.touched(change.files.as_deref().unwrap_or_default());
        let (mut taken, mut rest) = (Vec::new(), Vec::new());
        for item in self.items.iter().cloned() {
            let (is_core, is_touched, weight) = match &item {
                Item::Unit(_, unit) => {
                    let weight = if change.touches(unit.near) { NEAR } else { 1.0 };
                    let weight = if unit.rank == Rank::Full { 0.0 } else { weight };
                    (unit.rank == Rank::Core, change.touches(unit.of), weight)
                }
                Item::Cell(form, name) => {
                    let checkpoint = name.split('+').next().unwrap_or(name);
                    let (is_touched, is_near) = match &touched {
                        Touched::Few(names) => (names.contains(&checkpoint), false),
                        Touched::Many(names) => (false, names.contains(&checkpoint)),
                    };
                    (form.is_core(name), is_touched, if is_near { NEAR } else { 1.0 })
                }
            };
            match (is_core, is_touched) {
                (_, true) => taken.push((Choice::Touched, item)),
                (true, false) => taken.push((Choice::Core, item)),
                (false, false) => rest.push((weight, item)),
            }
        }
        let left = draw(rest, &mut taken, change.seed());
        Chosen { of: change.commit.clone(), is_shallow: change.files.is_none(), taken, left }
    }
}

impl Chosen {
    /// Returns the core, what the change touches, and a draw from the rest.
    ///
    /// # Errors
    /// When the checkpoints cannot be read.
    pub(crate) fn by_change(change: &Change) -> Result<Self, String> {
        Ok(Pool::read()?.choose(change))
    }

    /// Returns everything.
    ///
    /// # Errors
    /// When the checkpoints cannot be read.
    pub(crate) fn all() -> Result<Self, String> {
        let taken = items()?.into_iter().map(|item| (Choice::Touched, item)).collect();
        Ok(Self { of: "--full".to_owned(), is_shallow: false, taken, left: Vec::new() })
    }

    /// Returns the units and cells with these names. A name is a step, a form, or one of them with `/` and a unit or a
    /// checkpoint.
    ///
    /// # Errors
    /// When a name is unknown.
    pub(crate) fn named(names: &[String]) -> Result<Self, String> {
        let items = items()?;
        let mut taken = Vec::new();
        for name in names {
            let named: Vec<Item> = items.iter().filter(|item| item.is_named(name)).cloned().collect();
            if named.is_empty() {
                let steps: Vec<&str> =
                    STEPS.iter().map(|step| step.name).chain(FORMS.iter().map(|form| form.name)).collect();
                return Err(format!("there is no step or unit {name}; steps are {}", steps.join(", ")));
            }
            taken.extend(named.into_iter().map(|item| (Choice::Touched, item)));
        }
        Ok(Self { of: names.join(" "), is_shallow: false, taken, left: Vec::new() })
    }

    /// True if a cell is taken, or the step that computes cells.
    pub(crate) fn cells(&self) -> impl Iterator<Item = (Choice, &'static Form, &str)> {
        self.taken.iter().filter_map(|(choice, item)| match item {
            Item::Cell(form, name) => Some((*choice, *form, name.as_str())),
            Item::Unit(..) => None,
        })
    }

    /// Returns the units of `step` that were taken for a reason.
    pub(crate) fn units(&self, step: &Step, choice: Choice) -> Vec<&'static Unit> {
        let unit = |(taken, item): &(Choice, Item)| match item {
            Item::Unit(of, unit) if of.name == step.name && *taken == choice => Some(*unit),
            _ => None,
        };
        self.taken.iter().filter_map(unit).collect()
    }
}

/// Returns all units and cells.
fn items() -> Result<Vec<Item>, String> {
    let mut items: Vec<Item> =
        STEPS.iter().flat_map(|step| step.units.iter().map(move |unit| Item::Unit(step, unit))).collect();
    for form in &FORMS {
        items.extend(Families::checkpoints(form)?.into_iter().map(|name| Item::Cell(form, name)));
    }
    Ok(items)
}

/// Moves items from `rest` to `taken` until the time of each lane is spent, and returns the others. An item is the more
/// likely to be drawn the larger its weight is (Efraimidis and Spirakis, "Weighted random sampling with a reservoir").
fn draw(rest: Vec<(f64, Item)>, taken: &mut Vec<(Choice, Item)>, seed: u64) -> Vec<Item> {
    let mut random = fastrand::Rng::with_seed(seed);
    let keyed = rest
        .into_iter()
        .map(|(weight, item)| (if weight > 0.0 { random.f64().powf(1.0 / weight) } else { -1.0 }, item));
    let mut keyed: Vec<(f64, Item)> = keyed.collect();
    keyed.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    let mut left = Vec::new();
    let mut spent = [0, 0];
    for (key, item) in keyed {
        let spent = &mut spent[usize::from(item.lane() == Lane::Beside)];
        if key >= 0.0 && *spent + item.millis() <= DRAWN_SECONDS * 1000 {
            *spent += item.millis();
            taken.push((Choice::Drawn, item));
        } else {
            left.push(item);
        }
    }
    left
}

/// True if the step runs because a cell was taken, although no unit of it was.
pub(crate) fn computes_cells(step: &Step, chosen: &Chosen) -> bool {
    step.name == LIBRARIES && chosen.cells().next().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(commit: &str, file: &str) -> Vec<(Choice, String)> {
        chosen_of(&Pool::read().unwrap(), commit, file)
    }

    fn chosen_of(pool: &Pool, commit: &str, file: &str) -> Vec<(Choice, String)> {
        let change = Change { commit: commit.to_owned(), files: Some(vec![file.to_owned()]) };
        let chosen = pool.choose(&change);
        let name = |item: &Item| {
            let (step, unit) = item.names();
            format!("{step}/{unit}")
        };
        chosen.taken.iter().map(|(choice, item)| (*choice, name(item))).collect()
    }

    fn is(chosen: &[(Choice, String)], choice: Choice, name: &str) -> bool {
        chosen.contains(&(choice, name.to_owned()))
    }

    #[test]
    fn a_commit_repeats_its_choice() {
        assert_eq!(chosen("542007c600000000", "README.md"), chosen("542007c600000000", "README.md"));
        assert_ne!(chosen("542007c600000000", "README.md"), chosen("642007c600000000", "README.md"));
    }

    #[test]
    fn a_family_is_computed_in_all_forms() {
        let taken = chosen("1", "model/src/models/afmoe.rs");
        for form in FORMS.iter().filter(|form| form.folder == "families") {
            for name in ["afmoe", "afmoe-listed"] {
                assert!(is(&taken, Choice::Touched, &format!("{}/{name}", form.name)), "{name} in {}", form.name);
            }
        }
        assert!(is(&taken, Choice::Touched, "gguf/afmoe"));
    }

    #[test]
    fn checkpoints_of_a_large_change_are_drawn_before_others() {
        let pool = Pool::read().unwrap();
        let names = Families::checkpoints(matrix::form("xla")).unwrap();
        let changed: Vec<&String> = names.iter().take(60).collect();
        let file = |name: &&String| format!("integration-tests/fixtures/families/{name}/config.json");
        let change = Change { commit: "1".to_owned(), files: Some(changed.iter().map(file).collect()) };
        let chosen = pool.choose(&change);
        let cells = |items: &mut dyn Iterator<Item = &Item>| {
            let names = items.filter_map(|item| match item {
                Item::Cell(form, name) if form.folder == "families" => Some(name),
                _ => None,
            });
            let (changed, others): (Vec<_>, Vec<_>) = names.partition(|name| changed.contains(name));
            [changed.len(), others.len()]
        };
        let drawn = chosen.taken.iter().filter(|(choice, _)| *choice == Choice::Drawn);
        let [changed, others] = cells(&mut drawn.map(|(_, item)| item));
        let [changed_left, others_left] = cells(&mut chosen.left.iter());
        // The share of the change is twice that of the others.
        assert!(
            changed * (others + others_left) > 2 * others * (changed + changed_left),
            "of the change {changed} and not {changed_left}, of others {others} and not {others_left}"
        );
    }

    #[test]
    fn units_are_taken_if_their_files_change() {
        assert!(is(&chosen("1", "Dockerfile"), Choice::Touched, "images/all"));
        assert!(is(&chosen("1", "router/Cargo.toml"), Choice::Touched, "images/all"));
        assert!(is(&chosen("1", "scheduler/src/lib.rs"), Choice::Touched, "histories/all"));
        assert!(!chosen("1", "README.md").iter().any(|(_, name)| name == "images/all"));
    }

    #[test]
    fn every_run_takes_the_core() {
        let taken = chosen("1", "README.md");
        assert!(is(&taken, Choice::Core, "clippy/all"));
        assert!(is(&taken, Choice::Core, "it/hosts"));
        assert!(is(&taken, Choice::Core, "xla/olmo"));
        assert!(taken.iter().any(|(choice, _)| *choice == Choice::Drawn));
    }

    /// In many runs every unit that can be drawn is drawn at some time.
    #[test]
    fn every_unit_is_drawn_at_some_time() {
        let mut never: Vec<String> = STEPS
            .iter()
            .flat_map(|step| {
                step.units
                    .iter()
                    .filter(|unit| unit.rank == Rank::Drawn)
                    .map(move |unit| format!("{}/{}", step.name, unit.name))
            })
            .collect();
        let pool = Pool::read().unwrap();
        for seed in 0..60_u64 {
            let taken = chosen_of(&pool, &format!("{:016x}", seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)), "README.md");
            never.retain(|name| !is(&taken, Choice::Drawn, name));
        }
        assert!(never.is_empty(), "{never:?}");
    }

    #[test]
    fn names_choose_units() {
        let named = |name: &str| Chosen::named(&[name.to_owned()]).map(|chosen| chosen.taken.len());
        assert_eq!(named("clients/openai"), Ok(1));
        assert_eq!(named("xla/olmo"), Ok(1));
        assert!(named("clients").unwrap() > 5);
        assert!(named("clients/nobody").unwrap_err().starts_with("there is no step or unit clients/nobody"));
    }
}
