package dispatch

import (
	"testing"

	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
)

func TestSupportsForms_ReadsTheCapability(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		capabilities, version string
		want                  bool
	}{
		{`{"elicitation":{}}`, "2025-06-18", true},
		{`{"elicitation":{}}`, "2025-11-25", true},
		{`{"elicitation":{"form":{}}}`, "2025-11-25", true},
		{`{"elicitation":{"form":{},"url":{}}}`, "2025-11-25", true},
		{`{"elicitation":{"url":{}}}`, "2025-11-25", false},
		{`{"elicitation":{}}`, "2025-03-26", false},
		{`{"elicitation":{}}`, "", false},
		{`{"elicitation":null}`, "2025-11-25", false},
		{`{"elicitation":true}`, "2025-11-25", false},
		{`{"Elicitation":{}}`, "2025-11-25", false},
		{`{}`, "2025-11-25", false},
	} {
		m, err := jsonrpc.Parse([]byte(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"x","capabilities":`+tt.capabilities+`}}`), jsonrpc.DefaultLimits())
		if err != nil {
			t.Fatal(err)
		}
		if got := SupportsForms(m, tt.version); got != tt.want {
			t.Errorf("%s of %s: %v", tt.capabilities, tt.version, got)
		}
	}
	none, err := jsonrpc.Parse([]byte(`{"jsonrpc":"2.0","id":1,"method":"initialize"}`), jsonrpc.DefaultLimits())
	if err != nil || SupportsForms(none, "2025-11-25") {
		t.Errorf("without capabilities: %v", err)
	}
}

// Case A3. A call is confirmed only if the user accepts the form and has ticked its checkbox.
func TestConfirm_NeedsATickedForm(t *testing.T) {
	t.Parallel()
	for result, want := range map[string]attempt.Confirmation{
		`{"action":"accept","content":{"run":true}}`:             attempt.Confirmed,
		`{"action":"accept","content":{"run":true,"x":1}}`:       attempt.Confirmed,
		`{"action":"accept","content":{"run":false}}`:            attempt.Declined,
		`{"action":"accept","content":{}}`:                       attempt.Declined,
		`{"action":"accept"}`:                                    attempt.Declined,
		`{"action":"decline","content":{"run":true}}`:            attempt.Declined,
		`{"action":"cancel","content":{"run":true}}`:             attempt.Unanswered,
		`{"action":"ACCEPT","content":{"run":true}}`:             attempt.Unanswered,
		`{"action":"accept","content":{"run":"true"}}`:           attempt.Unanswered,
		`{"action":"accept","content":{"Run":true}}`:             attempt.Declined,
		`{"content":{"run":true}}`:                               attempt.Unanswered,
		`{"action":"accept","content":{"run":false,"run":true}}`: attempt.Unanswered,
		`7`: attempt.Unanswered, ``: attempt.Unanswered, `null`: attempt.Unanswered,
	} {
		if got := confirmed([]byte(result)); got != want {
			t.Errorf("%s is read as %v, want %v", result, got, want)
		}
	}
}
