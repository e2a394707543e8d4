//! Sends spans as OTLP over HTTP, in JSON, with OpenTelemetry's own exporter.
//!
//! This module gives the exporter its own HTTP client, which blocks for a limited time and needs no runtime. The client also
//! reads from the answer how many spans the collector rejected, which the exporter would only log.

use super::TraceSpan;
use crate::lock;
use anyhow::Context;
use async_trait::async_trait;
use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, RetryPolicy, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanExporter, SpanLinks};
use opentelemetry_sdk::Resource;
use rgaps_client::Stage;
use serde_json::Value;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const POST_LIMIT: Duration = Duration::from_secs(5);
/// Most bytes of an answer. A longer one counts as empty.
const MAX_ANSWER_BYTES: u64 = 64 << 10;

/// Sends spans to one collector.
pub struct Collector {
    exporter: opentelemetry_otlp::SpanExporter,
    scope: InstrumentationScope,
    answer: Arc<Mutex<Answer>>,
}

/// The collector's last answer: how many spans it rejected, and why; or why it did not answer.
#[derive(Debug, Default)]
struct Answer {
    rejected: u64,
    error: String,
}

impl Collector {
    /// Sets up the exporter to the collector at `url`, for the spans of this host.
    pub fn new(url: &str, realm: &str, host: &str) -> anyhow::Result<Collector> {
        let answer = Arc::<Mutex<Answer>>::default();
        let client = Client {
            agent: ureq::Agent::config_builder()
                .timeout_global(Some(POST_LIMIT))
                .max_redirects(0)
                .proxy(None)
                .build()
                .into(),
            answer: answer.clone(),
        };
        let mut exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_protocol(Protocol::HttpJson)
            .with_endpoint(url)
            .with_timeout(POST_LIMIT)
            // Spans that were not accepted are dropped and counted, so that the next ones need not wait.
            .with_retry_policy(RetryPolicy::disabled())
            .build()
            .context("setting up the exporter of traces")?;
        exporter.set_resource(&resource(realm, host));
        Ok(Collector {
            exporter,
            scope: InstrumentationScope::builder("rgaps-links").build(),
            answer,
        })
    }

    /// Sends spans. Returns how many of them the collector did not accept, and why.
    pub fn send(&mut self, spans: Vec<TraceSpan>, wall_offset_ns: i64) -> (u64, String) {
        let count = spans.len() as u64;
        let spans = spans.into_iter();
        let spans = spans.map(|span| span.into_data(&self.scope, wall_offset_ns));
        *lock(&self.answer) = Answer::default();
        let result = futures_executor::block_on(self.exporter.export(spans.collect()));
        let answer = std::mem::take(&mut *lock(&self.answer));
        match result {
            Ok(()) => (answer.rejected.min(count), answer.error),
            Err(_) if !answer.error.is_empty() => (count, answer.error),
            Err(error) => (count, error.to_string()),
        }
    }
}

/// The exporter's HTTP client.
#[derive(Debug)]
struct Client {
    agent: ureq::Agent,
    answer: Arc<Mutex<Answer>>,
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let response = self.post(request);
        *lock(&self.answer) = match &response {
            Ok(response) => partial_success(response.body()),
            Err(error) => Answer {
                rejected: 0,
                error: error.to_string(),
            },
        };
        Ok(response?)
    }
}

impl Client {
    fn post(&self, request: Request<Bytes>) -> Result<Response<Bytes>, ureq::Error> {
        let (parts, body) = request.into_parts();
        let response = self.agent.run(Request::from_parts(parts, &body[..]))?;
        let (parts, mut body) = response.into_parts();
        // A body that cannot be read counts as empty: the status already says that the collector accepted the spans.
        let body = body.with_config().limit(MAX_ANSWER_BYTES).read_to_vec();
        Ok(Response::from_parts(parts, body.unwrap_or_default().into()))
    }
}

/// Reads from an answer how many spans were rejected though the others were accepted, and why.
fn partial_success(body: &[u8]) -> Answer {
    let Ok(answer) = serde_json::from_slice::<Value>(body) else {
        return Answer::default();
    };
    let partial = &answer["partialSuccess"];
    let rejected = &partial["rejectedSpans"];
    let rejected = rejected
        .as_u64()
        .or_else(|| rejected.as_str()?.parse().ok());
    let error = partial["errorMessage"].as_str().unwrap_or_default();
    Answer {
        rejected: rejected.unwrap_or(0),
        error: format!("it rejected some: {error}"),
    }
}

fn resource(realm: &str, host: &str) -> Resource {
    let text = |key: &'static str, value: &str| KeyValue::new(key, value.to_owned());
    Resource::builder_empty()
        .with_attributes([
            text("service.name", "rgaps"),
            text("service.version", env!("CARGO_PKG_VERSION")),
            text("service.instance.id", host),
            text("host.name", host),
            text("rgaps.realm", realm),
        ])
        .build()
}

fn kind(stage: Stage) -> SpanKind {
    match stage {
        Stage::Take => SpanKind::Producer,
        Stage::Wire => SpanKind::Client,
        Stage::Land => SpanKind::Server,
        _ => SpanKind::Internal,
    }
}

fn wall_time(monotonic_ns: u64, wall_offset_ns: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(monotonic_ns.saturating_add_signed(wall_offset_ns))
}

impl TraceSpan {
    fn into_data(self, scope: &InstrumentationScope, wall_offset_ns: i64) -> SpanData {
        let trace = self.trace;
        let name = format!("{} {}", self.stage.name(), trace.topic);
        let mut attributes = vec![
            KeyValue::new("messaging.system", "rgaps"),
            KeyValue::new("messaging.destination.name", trace.topic),
            KeyValue::new("messaging.message.body.size", trace.bytes as i64),
            KeyValue::new("rgaps.publisher", format!("{:016x}", trace.publisher)),
            KeyValue::new("rgaps.sequence", trace.sequence as i64),
        ];
        attributes.extend(self.peer.map(|peer| KeyValue::new("rgaps.peer", peer)));
        let start_time = wall_time(self.from_ns, wall_offset_ns);
        let duration_ns = self.to_ns.saturating_sub(self.from_ns);
        SpanData {
            span_context: SpanContext::new(
                TraceId::from(trace.id),
                SpanId::from(self.id),
                TraceFlags::SAMPLED,
                false,
                TraceState::NONE,
            ),
            parent_span_id: self.parent.map_or(SpanId::INVALID, SpanId::from),
            // The parent of these stages is the wire's span, which the sending host made.
            parent_span_is_remote: matches!(self.stage, Stage::Land | Stage::Publish),
            span_kind: kind(self.stage),
            name: name.into(),
            start_time,
            end_time: start_time + Duration::from_nanos(duration_ns),
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: scope.clone(),
        }
    }
}
