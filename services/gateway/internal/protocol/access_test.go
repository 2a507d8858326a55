package protocol_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/protocol"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/visibility"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/quota"
)

func accountsOf(subject string) principal.Accounts {
	return principal.AccountsOf(gatewaytest.Caller(subject).Principal)
}

func TestMayReceive_NeedsAValidTokenAndAServerInReach(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		stale, revoked bool
		access         *policyv1.CheckServerResponse
		want           bool
	}{
		"in reach":              {access: &policyv1.CheckServerResponse{CouldAllow: true}, want: true},
		"not in reach":          {access: &policyv1.CheckServerResponse{HidesNone: true}},
		"policy is unavailable": {},
		"the token is stale":    {stale: true, access: &policyv1.CheckServerResponse{CouldAllow: true}},
		"the token is revoked":  {revoked: true, access: &policyv1.CheckServerResponse{CouldAllow: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.Start(t)
				g.Policy.AccessOf = func(server string) *policyv1.CheckServerResponse {
					if server != "files" {
						return new(policyv1.CheckServerResponse)
					}
					return tt.access
				}
				m := gatewaytest.Message{Server: "files", Caller: gatewaytest.Caller("ana")}
				m.Caller.Stale, m.Caller.Credential = tt.stale, gatewaytest.RevokedWhen(func() bool { return tt.revoked })
				x := g.Request(t.Context(), m, new(dispatch.Callback))
				if got := x.MayReceive(t.Context()); got != tt.want {
					t.Errorf("%t, want %t", got, tt.want)
				}
				if x.MayReceiveFrom(t.Context(), "notes") {
					t.Error("the caller may receive from a server that is not in reach")
				}
			})
		})
	}
}

func TestSessionNotOpened_SaysWhyNoSessionWasOpened(t *testing.T) {
	t.Parallel()
	full := quota.NewTally("sessions", quota.Limits{})
	accounts := accountsOf("ana")
	for name, tt := range map[string]struct {
		err  error
		code commonv1.Code
		says string
	}{
		"the quota is full":    {errors.Join(session.ErrTooMany, full.Acquire(&accounts, 1)), commonv1.Code_CODE_TOO_MANY_SESSIONS, "session.max_per_principal"},
		"too many":             {fmt.Errorf("%w: x", session.ErrTooMany), commonv1.Code_CODE_TOO_MANY_SESSIONS, ""},
		"another revision":     {fmt.Errorf("%w: x", protocol.ErrVersion), commonv1.Code_CODE_PROTOCOL_VERSION, "the server speaks a protocol version that is not supported here."},
		"no usable answer":     {upstream.ErrNoAnswer, commonv1.Code_CODE_UPSTREAM_UNAVAILABLE, ""},
		"the session is ended": {session.ErrUnknown, commonv1.Code_CODE_UPSTREAM_UNAVAILABLE, ""},
	} {
		got := protocol.SessionNotOpened(tt.err)
		if got.Code != tt.code || !strings.Contains(got.Message, tt.says) || (got.Message == "") != (tt.says == "") || got.IsProtocolError {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestServerCapabilities_KeepsWhatTheCallerMayUse(t *testing.T) {
	t.Parallel()
	answer, err := jsonrpc.ReadAnswer([]byte(`{"jsonrpc":"2.0","id":1,"result":{"capabilities":{"tools":{"listChanged":true},"prompts":{},"resources":{"subscribe":true},"vendor":{}}}}`), jsonrpc.AnswerLimits())
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		methods, extensions []string
		want                string
	}{
		{nil, nil, `{"tools":{"listChanged":true}}`},
		{[]string{"prompts/list"}, nil, `{"tools":{"listChanged":true},"prompts":{}}`},
		{[]string{"resources/list"}, nil, `{"tools":{"listChanged":true},"resources":{}}`},
		{[]string{"resources/list", "resources/subscribe"}, []string{"x/y"}, `{"tools":{"listChanged":true},"resources":{"subscribe":true},"extensions":{"x/y":{}}}`},
	} {
		if diff := cmp.Diff(tt.want, string(protocol.ServerCapabilities(answer, visibility.Access{Methods: tt.methods}, tt.extensions...))); diff != "" {
			t.Errorf("for %q (-want +got):\n%s", tt.methods, diff)
		}
	}
}

func TestMayUse_EveryCallerMayListTools(t *testing.T) {
	t.Parallel()
	may := protocol.MayUse(visibility.Access{Methods: []string{"prompts/list"}})
	for method, want := range map[string]bool{"tools/list": true, "prompts/list": true, "resources/list": false, "tools/call": false} {
		if may(method) != want {
			t.Errorf("%s: %t", method, !want)
		}
	}
}

func TestUnknownSession_IsAProtocolError(t *testing.T) {
	t.Parallel()
	for want, got := range map[commonv1.Code]*refusal.Refusal{
		commonv1.Code_CODE_SESSION_UNKNOWN: protocol.UnknownSession(), commonv1.Code_CODE_JSON_INVALID: protocol.UnreadableBody(),
	} {
		if got.Code != want || !got.IsProtocolError {
			t.Errorf("%+v", got)
		}
	}
}
