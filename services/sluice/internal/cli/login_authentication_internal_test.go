package cli

import (
	"bytes"
	"context"
	"net/url"
	"strings"
	"testing"
	"time"

	"golang.org/x/oauth2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

func TestLogin_ChecksTheFlagsOfTheAuthentication(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		flags loginFlags
		err   string // empty if the flags are valid
	}{
		"none":            {loginFlags{}, ""},
		"both":            {loginFlags{maxAge: 5 * time.Minute, acr: []string{"phr", "urn:x:2"}}, ""},
		"too short":       {loginFlags{maxAge: 59 * time.Second}, "between 1m and 24h"},
		"too long":        {loginFlags{maxAge: 25 * time.Hour}, "between 1m and 24h"},
		"negative":        {loginFlags{maxAge: -time.Minute}, "between 1m and 24h"},
		"half a second":   {loginFlags{maxAge: time.Minute + time.Millisecond}, "whole seconds"},
		"an empty class":  {loginFlags{acr: []string{""}}, "is not a class"},
		"two in one":      {loginFlags{acr: []string{"a b"}}, "is not a class"},
		"a long class":    {loginFlags{acr: []string{strings.Repeat("a", 257)}}, "is not a class"},
		"the same class":  {loginFlags{acr: []string{"a", "a"}}, "twice"},
		"nine classes":    {loginFlags{acr: strings.Split("abcdefghi", "")}, "at most 8"},
		"a class in UTF8": {loginFlags{acr: []string{"ü"}}, "is not a class"},
	} {
		err := c.flags.checkAuthentication()
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Without --max-age, the request asks for the time of the authentication, but accepts any time.
func TestLogin_AsksForTheAuthentication(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		flags       loginFlags
		maxAge, acr string
	}{
		"no flags":  {loginFlags{}, "31536000", ""},
		"both":      {loginFlags{maxAge: 5 * time.Minute, acr: []string{"phr", "phrh"}}, "300", "phr phrh"},
		"only acr":  {loginFlags{acr: []string{"phr"}}, "31536000", "phr"},
		"a maximum": {loginFlags{maxAge: 24 * time.Hour}, "86400", ""},
	} {
		config := oauth2.Config{Endpoint: oauth2.Endpoint{AuthURL: "https://login.example.com/authorize"}}
		page, err := url.Parse(config.AuthCodeURL("s", authenticationParameters(c.flags.authentication())...))
		if err != nil {
			t.Fatal(err)
		}
		if got := page.Query(); got.Get("max_age") != c.maxAge || got.Get("acr_values") != c.acr || got.Has("acr_values") != (c.acr != "") {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// refusingClient has one pending approval and refuses votes with a reason and facts.
type refusingClient struct {
	recordingClient

	facts map[string]string
}

func (c *refusingClient) DecideApproval(context.Context, *approvalv1.DecideApprovalRequest, ...grpc.CallOption) (*approvalv1.DecideApprovalResponse, error) {
	err := &rpc.Error{Code: codes.FailedPrecondition, Reason: "STEP_UP_REQUIRED", Facts: c.facts}
	return nil, err.GRPCStatus().Err()
}

// A vote that needs another sign-in names the command to run, with half of the maximum age. Facts that can't be flags
// are left out, and the command can't contain another command.
func TestApprovals_AVoteThatNeedsASignInNamesTheCommand(t *testing.T) {
	t.Parallel()
	for want, facts := range map[string]map[string]string{
		"`sluice login --role approver --max-age 2m30s --acr phr --acr phrh`": {"role": "approver", "max_age": "300", "acr_values": "phr phrh"},
		"`sluice login --role operator --max-age 12h`":                        {"role": "operator", "max_age": "86400"},
		"`sluice login --max-age 1m1s`":                                       {"max_age": "123"},
		"`sluice login --max-age 1m`":                                         {"max_age": "60"},
		"`sluice login --acr '$(reboot)'`":                                    {"role": "agent; reboot", "max_age": "-1", "acr_values": "$(reboot)"},
		"`sluice login`":                                                      {"max_age": "99999999999999999999"},
	} {
		var out bytes.Buffer
		c := &refusingClient{recordingClient{state: approvalv1.ApprovalState_APPROVAL_STATE_PENDING}, facts}
		err := (&tool{self: "sluice", out: &out, errOut: &out}).decide(t.Context(), c, ballot{id: approvalID, verdict: approvalv1.Verdict_VERDICT_APPROVE, assumeYes: true})
		if err == nil || !strings.Contains(err.Error(), "Run "+want+", and then vote again") {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
