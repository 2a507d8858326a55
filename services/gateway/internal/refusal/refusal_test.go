package refusal_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/internal/enum"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got); if that is meant, run with -update:\n%s", file, diff)
	}
}

func allCodes() []commonv1.Code {
	var out []commonv1.Code
	for number := range commonv1.Code_name {
		out = append(out, commonv1.Code(number))
	}
	slices.Sort(out)
	return out
}

func TestText_EveryCodeHasAText(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	for _, code := range allCodes() {
		r := refusal.Refusal{Code: code}
		text := r.Text()
		if !strings.HasSuffix(text, ".") {
			t.Errorf("%s has the text %q, which is not a sentence", code, text)
		}
		fmt.Fprintf(&out, "%-24s %-5v %s\n", enum.NameOrEmpty(code), r.Retryable(), text)
	}
	golden(t, "testdata/codes.txt", out.String())
}

func TestAnswer_MatchesGoldenFiles(t *testing.T) {
	t.Parallel()
	rule := &policyv1.RuleRef{Document: "finance", Rule: "tools.pay"}
	cases := []struct {
		name string
		r    refusal.Refusal
	}{
		{"denied by a rule", refusal.Refusal{
			ID: "d-1", Code: commonv1.Code_CODE_DENIED_BY_RULE, Message: "ask a person", Rule: rule, PolicyRevision: "abc",
		}},
		{"limited", refusal.Refusal{
			ID: "d-2", Code: commonv1.Code_CODE_RATE_LIMITED, Message: "at most 10 calls in 1m0s for each session.", Rule: rule,
			RetryAfter: 59_000_000_001 * time.Nanosecond, SessionKey: policyv1.SessionKey_SESSION_KEY_RUN, PolicyRevision: "abc",
		}},
		{"denied by a document's default", refusal.Refusal{ID: "d-3", Code: commonv1.Code_CODE_DENIED_BY_DEFAULT, Rule: &policyv1.RuleRef{Document: "finance"}}},
		{"nothing known", refusal.Refusal{Code: commonv1.Code_CODE_UNAUTHENTICATED}},
		{"a missing scope", refusal.Refusal{
			ID: "d-5", Code: commonv1.Code_CODE_SCOPE_MISSING, Message: "the call needs the OAuth scopes a and b", Rule: rule, PolicyRevision: "abc",
			Scopes: &refusal.Scopes{Needed: []string{"a", "b"}, Missing: []string{"b"}},
		}},
		{"text that is markup and more", refusal.Refusal{ID: "d-4", Code: commonv1.Code_CODE_DENIED_BY_RULE, Message: "</script>\u2028\"\n\x1b[31m"}},
	}
	var out strings.Builder
	for _, c := range cases {
		fmt.Fprintf(&out, "-- %s --\n", c.name)
		for _, make := range []func() ([]byte, error){
			func() ([]byte, error) {
				return c.r.Answer(refusal.Request{ID: []byte(`"caf\u00e9"`), Method: "tools/call"})
			},
			func() ([]byte, error) { return c.r.Error([]byte(`9007199254740991`), -31403) },
			func() ([]byte, error) { return c.r.Error(nil, -32700) },
			func() ([]byte, error) {
				r := c.r
				r.Versions = &refusal.Versions{Requested: "2026-07-28", Supported: mcp.Supported()}
				return r.Error([]byte(`1`), mcp.CodeVersionUnsupported)
			},
		} {
			body, err := make()
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			if !json.Valid(body) || strings.Contains(string(body), "structuredContent") {
				t.Errorf("%s: %s", c.name, body)
			}
			fmt.Fprintf(&out, "%s\n", body)
		}
	}
	golden(t, "testdata/forms.txt", out.String())
}

// Waiting times are rounded up, so that a caller that waits for the given time does not retry too early.
func TestText_RoundsWaitsUp(t *testing.T) {
	t.Parallel()
	tests := []struct {
		wait   time.Duration
		text   string
		millis float64
	}{
		{0, "Rate limit reached: x.", 0},
		{1, "Rate limit reached: x. Try again in 0.1 s.", 1},
		{100 * time.Millisecond, "Rate limit reached: x. Try again in 0.1 s.", 100},
		{1200*time.Millisecond + 1, "Rate limit reached: x. Try again in 1.3 s.", 1201},
		{60 * time.Second, "Rate limit reached: x. Try again in 60 s.", 60_000},
		{time.Hour + 1, "Rate limit reached: x. Try again in 3600.1 s.", 3_600_001},
		{24 * time.Hour, "Rate limit reached: x. Try again in 86400 s.", 86_400_000},
	}
	for _, tt := range tests {
		t.Run(tt.wait.String(), func(t *testing.T) {
			t.Parallel()
			r := refusal.Refusal{Code: commonv1.Code_CODE_RATE_LIMITED, Message: "x.", RetryAfter: tt.wait}
			if got := r.Text(); got != tt.text {
				t.Errorf("got %q, want %q", got, tt.text)
			}
			if r.Retryable() != (tt.wait > 0) {
				t.Errorf("retryable is %v", r.Retryable())
			}
			body, err := r.Error([]byte("1"), 1)
			if err != nil {
				t.Fatal(err)
			}
			var read struct {
				Error struct {
					Data struct{ RetryAfterMs float64 }
				}
			}
			if err := json.Unmarshal(body, &read); err != nil || read.Error.Data.RetryAfterMs != tt.millis {
				t.Errorf("retryAfterMs is %v, want %v (%v)", read.Error.Data.RetryAfterMs, tt.millis, err)
			}
		})
	}
}

// The text of a refusal that must not be retried contains no waiting time. In other refusals, the waiting time is in a
// sentence of its own.
func TestText_NamesWaitOnlyIfRetryable(t *testing.T) {
	t.Parallel()
	for code, want := range map[commonv1.Code]string{
		commonv1.Code_CODE_APPROVAL_DENIED: "Not executed: not today",
		commonv1.Code_CODE_RATE_LIMITED:    "Rate limit reached: not today. Try again in 1 s.",
	} {
		r := refusal.Refusal{Code: code, Message: "not today", RetryAfter: time.Second}
		body, err := r.Answer(refusal.Request{ID: []byte("1"), Method: "tools/call"})
		if err != nil || r.Text() != want || strings.Contains(string(body), "retryAfterMs") != r.Retryable() {
			t.Errorf("%s: %s, %v", want, body, err)
		}
	}
}

func TestAnswer_HasTheFormOfItsMethodUnlessItIsAProtocolError(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, method, want string
		refused            refusal.Refusal
		status             int
	}{
		{"a call", "tools/call", `"isError":true`, refusal.Refusal{Code: commonv1.Code_CODE_ABUSE_LIMITED}, 200},
		{"another method", "prompts/get", `"code":-31403`, refusal.Refusal{Code: commonv1.Code_CODE_ABUSE_LIMITED}, 200},
		{"a call that finds no room", "tools/call", `"code":-32600`, *refusal.ProtocolError(commonv1.Code_CODE_ABUSE_LIMITED, ""), 429},
		{"no JSON", "", `"code":-32700`, *refusal.ProtocolError(commonv1.Code_CODE_JSON_INVALID, ""), 400},
		{"a code without an entry", "", `"code":-32600`, *refusal.ProtocolError(commonv1.Code_CODE_JSON_TOO_DEEP, ""), 400},
		{"a session that ended", "tools/call", `"code":-32600`, *refusal.ProtocolError(commonv1.Code_CODE_SESSION_UNKNOWN, ""), 404},
		{
			"an extension", "tasks/get", `"requiredCapabilities":{"extensions":{"x/y":{}}}`,
			refusal.Refusal{Code: commonv1.Code_CODE_CAPABILITY_MISSING, IsProtocolError: true, Extension: "x/y"}, 400,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			body, err := tt.refused.Answer(refusal.Request{ID: []byte("1"), Method: tt.method})
			if err != nil || !strings.Contains(string(body), tt.want) || tt.refused.Status() != tt.status {
				t.Errorf("status %d, %s, %v; want %d and %s", tt.refused.Status(), body, err, tt.status, tt.want)
			}
		})
	}
}
