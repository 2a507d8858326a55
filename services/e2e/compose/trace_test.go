//go:build compose

package compose_test

import (
	"net/http"
	"slices"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// span contains the fields of a span that the test compares.
type span struct {
	ID, Parent    string
	Service, Name string
}

// jaegerTraces is the response of Jaeger's HTTP API.
type jaegerTraces struct {
	Data []struct {
		Spans []struct {
			SpanID     string `json:"spanID"`
			Operation  string `json:"operationName"`
			ProcessID  string `json:"processID"`
			References []struct {
				Type   string `json:"refType"`
				Trace  string `json:"traceID"`
				SpanID string `json:"spanID"`
			} `json:"references"`
		} `json:"spans"`
		Processes map[string]struct {
			Service string `json:"serviceName"`
		} `json:"processes"`
	} `json:"data"`
}

// traceStories checks that one trace contains the spans of an allowed, rate-limited call from all processes.
func traceStories(t *testing.T, d *deployment) {
	client := npmtest.StartClient(t, d.mcp(), d.agent)
	before := len(d.demoCalls(t))
	if result := client.CallTool(npmtest.ToolCall{Name: "run_report"}).ToolResult(t); result.IsError {
		t.Fatalf("the call was refused: %s", result.Text())
	}
	var arrived demoCall
	eventually.Within(t, commandTime, "the demo server logs the call", func() bool {
		calls := d.demoCalls(t)
		arrived = calls[len(calls)-1]
		return len(calls) > before && arrived.Tool == "run_report"
	})

	var spans []span
	eventually.Within(t, commandTime, "Jaeger has the spans of trace "+arrived.TraceID, func() bool {
		spans = d.trace(t, arrived.TraceID)
		return len(spans) >= 8
	})
	const (
		call    = "sluice-gateway tools/call run_report"
		decide  = policyService + "/DecideCall"
		reserve = "sluice.ratelimit.v1.RateLimitService/ReserveLimits"
	)
	want := []string{ // each span and its parent
		call + " <- ",
		call + " <- " + call,
		"sluice-gateway journal intent <- " + call,
		"sluice-gateway journal outcome <- " + call,
		"sluice-gateway " + decide + " <- " + call,
		"sluice-gateway " + reserve + " <- " + call,
		"sluice-policy " + decide + " <- sluice-gateway " + decide,
		"sluice-ratelimit " + reserve + " <- sluice-gateway " + reserve,
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, describeSpans(spans)); diff != "" {
		t.Errorf("spans of trace %s (-want +got):\n%s", arrived.TraceID, diff)
	}
	// The server must receive the trace context of the span that covers sending the call to the server.
	for _, s := range spans {
		if arrived.TraceParent == "00-"+arrived.TraceID+"-"+s.ID+"-01" && s.Parent != "" && s.Service+" "+s.Name == call {
			return
		}
	}
	t.Errorf("the demo server got traceparent %s, which is not the parent of a span that sends a call: %+v", arrived.TraceParent, spans)
}

// describeSpans returns a string for each span: its name and the name of its parent.
func describeSpans(spans []span) []string {
	names := make(map[string]string)
	for _, s := range spans {
		names[s.ID] = s.Service + " " + s.Name
	}
	var out []string
	for _, s := range spans {
		parent := names[s.Parent]
		if s.Parent != "" && parent == "" {
			parent = "an unknown span: " + s.Parent
		}
		out = append(out, names[s.ID]+" <- "+parent)
	}
	slices.Sort(out)
	return out
}

// trace requests the spans of a trace from Jaeger. It returns nil if Jaeger does not have the trace yet.
func (d *deployment) trace(t *testing.T, id string) []span {
	t.Helper()
	resp, err := http.Get("http://" + d.addr("JAEGER_PORT") + "/api/traces/" + id)
	if err != nil {
		t.Fatalf("ask Jaeger: %v", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotFound {
		return nil
	}
	var traces jaegerTraces
	if err := json.UnmarshalRead(resp.Body, &traces); err != nil || len(traces.Data) != 1 {
		t.Fatalf("Jaeger answered %s with %d traces, %v", resp.Status, len(traces.Data), err)
	}
	var spans []span
	for _, s := range traces.Data[0].Spans {
		out := span{ID: s.SpanID, Service: traces.Data[0].Processes[s.ProcessID].Service, Name: s.Operation}
		for _, ref := range s.References {
			if ref.Type == "CHILD_OF" && ref.Trace == id {
				out.Parent = ref.SpanID
			}
		}
		spans = append(spans, out)
	}
	return spans
}
