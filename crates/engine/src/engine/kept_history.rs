//! The requests about the history of publishers that left or died.

use super::Engine;
use crate::refuse::refuse;
use crate::sessions::SessionId;
use crate::topic::Publisher;
use rgaps_session::{Answer, KeptHistory, Refusal, RefusalCode};

/// How many topics a status names.
const NAMES_MAX: usize = 8;

impl Engine {
    /// Sums up the history that publishers left for late joiners. Names only topics that the session may see.
    pub(super) fn kept_history(&self, session: Option<SessionId>) -> KeptHistory {
        let mut all = KeptHistory::default();
        for zone in self.zones.iter() {
            let may_see = session.is_some_and(|session| self.may_see(session, zone));
            for topic in zone.orphaned_topics() {
                let messages: u64 = topic.publishers.iter().filter_map(Publisher::kept).sum();
                if messages == 0 {
                    continue;
                }
                all.topics += 1;
                all.messages += messages;
                if may_see && all.names.len() < NAMES_MAX {
                    all.names.push(topic.name.clone());
                }
            }
        }
        all
    }

    /// Drops the history of a topic's publishers that left or died, for somebody who may publish there.
    pub(super) fn forget_topic(
        &mut self,
        session: SessionId,
        name: &str,
    ) -> Result<Answer, Refusal> {
        let class = self.check_access(session, name, true)?;
        let zone = self.zones.of_class_mut(&class);
        let found = zone.and_then(|zone| Some((zone.topics().find(name)?, zone)));
        let Some((index, zone)) = found else {
            self.check_recovered(&class)?;
            return Err(refuse(
                RefusalCode::NotFound,
                format!("there is no topic '{name}'; see 'rgaps topic list'"),
            ));
        };
        let forgotten = zone.forget_history(index);
        Ok(Answer::Forgotten(forgotten))
    }
}
