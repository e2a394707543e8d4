//! What the user has chosen with keys: the order of topics, the scroll position, a pause.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use rgaps_view::overview::{RealmReport, Topic};

/// The column by which topics are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    Name,
    #[default]
    Messages,
    Bytes,
    Missed,
    Subscribers,
}

impl Sort {
    const ALL: [Sort; 5] = [
        Sort::Name,
        Sort::Messages,
        Sort::Bytes,
        Sort::Missed,
        Sort::Subscribers,
    ];

    fn next(self) -> Sort {
        let at = Sort::ALL.iter().position(|sort| *sort == self);
        Sort::ALL[at.map_or(0, |at| (at + 1) % Sort::ALL.len())]
    }
}

/// Whether `top` continues after a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Go,
    Quit,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct View {
    pub sort: Sort,
    pub reverse: bool,
    /// How many topics are scrolled off the top.
    pub first: usize,
    /// Whether the screen keeps the current figures.
    pub paused: bool,
}

/// Rows by which a page key scrolls.
const PAGE: usize = 10;

impl View {
    pub fn key(&mut self, key: KeyEvent, topics: usize) -> Step {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        let last = topics.saturating_sub(1);
        match key.code {
            KeyCode::Char('c') if control => return Step::Quit,
            KeyCode::Char('q') | KeyCode::Esc => return Step::Quit,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('n') => self.sort = Sort::Name,
            KeyCode::Char('m') => self.sort = Sort::Messages,
            KeyCode::Char('b') => self.sort = Sort::Bytes,
            KeyCode::Char('i') => self.sort = Sort::Missed,
            KeyCode::Char('u') => self.sort = Sort::Subscribers,
            KeyCode::Char('r') => self.reverse = !self.reverse,
            KeyCode::Char('p') | KeyCode::Char(' ') => self.paused = !self.paused,
            KeyCode::Down => self.first = (self.first + 1).min(last),
            KeyCode::Up => self.first = self.first.saturating_sub(1),
            KeyCode::PageDown => self.first = (self.first + PAGE).min(last),
            KeyCode::PageUp => self.first = self.first.saturating_sub(PAGE),
            KeyCode::Home => self.first = 0,
            KeyCode::End => self.first = last,
            _ => {}
        }
        Step::Go
    }

    /// The topics in the chosen order: largest figures first, names from A. `reverse` turns that round.
    pub fn sorted<'a>(&self, report: &'a RealmReport) -> Vec<&'a Topic> {
        let mut topics: Vec<&Topic> = report.topics.iter().collect();
        topics.sort_by(|a, b| {
            let most = |of: fn(&Topic) -> f64| of(b).total_cmp(&of(a));
            let order = match self.sort {
                Sort::Name => std::cmp::Ordering::Equal,
                Sort::Messages => most(|t| t.messages_per_s),
                Sort::Bytes => most(|t| t.bytes_per_s),
                Sort::Missed => most(|t| t.missed_per_s).then(b.missed.cmp(&a.missed)),
                Sort::Subscribers => {
                    most(|t| f64::from(t.subscribers) + f64::from(t.remote_subscribers))
                }
            };
            order.then_with(|| a.topic.cmp(&b.topic))
        });
        if self.reverse {
            topics.reverse();
        }
        topics
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(view: &mut View, code: KeyCode) -> Step {
        view.key(KeyEvent::new(code, KeyModifiers::NONE), 30)
    }

    fn report() -> RealmReport {
        let topic = |topic: &str, messages_per_s, bytes_per_s, missed| Topic {
            topic: topic.to_owned(),
            messages_per_s,
            bytes_per_s,
            missed,
            ..Topic::default()
        };
        RealmReport {
            topics: vec![
                topic("b", 1.0, 9.0, 0),
                topic("a", 5.0, 1.0, 0),
                topic("c", 5.0, 2.0, 7),
            ],
            ..RealmReport::default()
        }
    }

    fn names(view: &View) -> String {
        let report = report();
        view.sorted(&report)
            .iter()
            .map(|t| t.topic.as_str())
            .collect()
    }

    #[test]
    fn keys_choose_the_order() {
        let mut view = View::default();
        assert_eq!(names(&view), "acb");
        for (key, order) in [
            ('b', "bca"),
            ('i', "cab"),
            ('n', "abc"),
            ('r', "cba"),
            ('s', "bca"),
        ] {
            assert_eq!(press(&mut view, KeyCode::Char(key)), Step::Go);
            assert_eq!(names(&view), order, "{key}");
        }
    }

    #[test]
    fn keys_scroll_within_the_topics_and_end() {
        let mut view = View::default();
        press(&mut view, KeyCode::Up);
        assert_eq!(view.first, 0);
        for (key, first) in [
            (KeyCode::Down, 1),
            (KeyCode::PageDown, 11),
            (KeyCode::End, 29),
            (KeyCode::Down, 29),
            (KeyCode::PageUp, 19),
            (KeyCode::Home, 0),
        ] {
            press(&mut view, key);
            assert_eq!(view.first, first, "{key:?}");
        }
        press(&mut view, KeyCode::Char('p'));
        assert!(view.paused);
        assert_eq!(press(&mut view, KeyCode::Char('q')), Step::Quit);
        assert_eq!(press(&mut view, KeyCode::Esc), Step::Quit);
        let end = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(view.key(end, 0), Step::Quit);
        assert_eq!(press(&mut view, KeyCode::Char('c')), Step::Go);
    }
}
