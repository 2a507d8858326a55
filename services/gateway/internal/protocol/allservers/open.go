package allservers

import (
	"context"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/aggregate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/protocol"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
)

type initializeResponse struct {
	Version string         `json:"jsonrpc"`
	ID      jsontext.Value `json:"id"`
	Result  struct {
		ProtocolVersion string                     `json:"protocolVersion"`
		Capabilities    map[string]map[string]bool `json:"capabilities"`
		ServerInfo      dispatch.ServerInfo        `json:"serverInfo"`
		Instructions    string                     `json:"instructions"`
	} `json:"result"`
}

// Open opens an aggregate session. It opens no sessions with servers, because the first use of a server opens the
// session with that server. However, Open may wait until the gateway itself has discovered the servers.
func (x All) Open(ctx context.Context) dispatch.Response {
	done, err := x.Sessions.BeginOpen(x.Slot.Owner.Accounts)
	if err != nil {
		return x.Refuse(ctx, protocol.SessionNotOpened(err))
	}
	defer done()
	servers, refused := x.Accessible(ctx)
	if refused != nil {
		return x.Refuse(ctx, refused)
	}
	version := x.Message.Version
	if !mcp.IsSupported(version) {
		version = mcp.Supported()[0]
	}
	sess := x.newSession(version)
	body, err := x.greeting(sess, servers)
	if err != nil {
		return x.Refuse(ctx, &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE})
	}
	if err := x.Sessions.Add(sess); err != nil {
		return x.Refuse(ctx, protocol.SessionNotOpened(err))
	}
	return dispatch.Response{Body: [][]byte{body}, Session: sess.ID}
}

func (x All) newSession(version string) *session.Session {
	id, digest := session.NewID()
	sess := &session.Session{
		ID: id, Digest: digest, Key: protocol.SessionKey(x.Caller, x.ServerName), Accounts: x.Slot.Owner.Accounts, Agent: x.Principal.GetAgent(), Version: version, Opened: time.Now(),
		Client: session.Client{Elicits: dispatch.SupportsForms(x.Message, version)}, Members: &session.Members{Abilities: x.SharedAbilities()},
	}
	sess.Client.Name, sess.Client.Version = x.Message.Client()
	return sess
}

// SharedAbilities returns the client's capabilities that all servers may use. It excludes the option to include context
// in sampling requests, because that context would contain messages from other servers.
func (x All) SharedAbilities() []mcp.Ability {
	out := x.Abilities()
	for i, a := range out {
		out[i].Options = slices.DeleteFunc(a.Options, func(o mcp.Option) bool { return o.Name == "context" })
	}
	return out
}

func (x All) greeting(sess *session.Session, servers []*Accessible) ([]byte, error) {
	out := initializeResponse{Version: "2.0", ID: x.ID()}
	r := &out.Result
	r.ProtocolVersion, r.ServerInfo = sess.Version, x.Info()
	greetings, err := Greetings(servers), error(nil)
	if r.Capabilities, err = aggregate.Capabilities(greetings); err != nil {
		return nil, err
	}
	r.Instructions = aggregate.Instructions(greetings)
	return json.Marshal(out, json.Deterministic(true))
}

// Greetings returns the servers' answers to initialize that the gateway knows.
func Greetings(servers []*Accessible) (out []aggregate.Greeting) {
	for _, s := range servers {
		out = append(out, aggregate.Greeting{Server: s.ServerName, Answer: s.greeting, Allowed: protocol.MayUse(s.Allowed)})
	}
	return out
}
