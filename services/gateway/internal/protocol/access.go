package protocol

import (
	"context"
	"errors"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/visibility"
	"github.com/sluice-mesh/sluice/services/internal/quota"
)

// MayReceive reports whether the caller may currently receive messages from the request's server.
func (x *Request) MayReceive(ctx context.Context) bool { return x.MayReceiveFrom(ctx, x.ServerName) }

// MayReceiveFrom reports whether the caller may currently receive messages from a server. If server is empty, it
// reports whether the caller may receive the gateway's own messages at the URL for all servers. This requires access to
// at least one server.
func (x *Request) MayReceiveFrom(ctx context.Context, server string) bool {
	if x.Stale || x.Revoked(ctx) {
		return false
	}
	if server != "" {
		return x.mayCall(ctx, server)
	}
	for name := range x.Servers {
		if x.mayCall(ctx, name) {
			return true
		}
	}
	return false
}

// mayCall reports whether a rule can allow the caller to call a server.
func (x *Request) mayCall(ctx context.Context, server string) bool {
	access, err := x.Visibility.Access(ctx, x.Principal, server)
	return err == nil && access.MayCall
}

// ErrVersion means that the client and the server have negotiated an MCP revision that the gateway does not support.
var ErrVersion = errors.New("the server speaks a protocol version that is not supported here")

// SessionNotOpened returns the refusal for a request if its session could not be opened because of err.
func SessionNotOpened(err error) *refusal.Refusal {
	switch {
	case errors.Is(err, session.ErrTooMany):
		refused := &refusal.Refusal{Code: commonv1.Code_CODE_TOO_MANY_SESSIONS}
		if full := quota.Reason(err); full != "" {
			refused.Message = full + " (session.max_per_principal); end some of them, or wait until one is idle."
		}
		return refused
	case errors.Is(err, ErrVersion):
		return &refusal.Refusal{Code: commonv1.Code_CODE_PROTOCOL_VERSION, Message: ErrVersion.Error() + "."}
	default:
		return &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE}
	}
}

// ServerCapabilities returns the server's capabilities that the caller may use. It adds the given extensions, which the
// gateway itself implements.
func ServerCapabilities(answer *jsonrpc.Answer, access visibility.Access, extensions ...string) []byte {
	return mcp.FilterCapabilities(answer.Capabilities.Of(answer.Raw), MayUse(access), extensions...)
}

// MayUse returns a function that reports whether the caller may use a method. Every caller may list tools.
func MayUse(access visibility.Access) func(method string) bool {
	return func(method string) bool {
		return method == mcp.MethodToolsList || access.Has(method)
	}
}
