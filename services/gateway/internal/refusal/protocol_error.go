package refusal

import (
	"net/http"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
)

// protocolError contains the HTTP status and the JSON-RPC error code of the answer to a message that is not accepted.
type protocolError struct{ status, rpc int }

// protocolErrors contains the refusal codes whose answers have an HTTP status other than 400 or an error code other
// than -32600.
var protocolErrors = map[commonv1.Code]protocolError{
	commonv1.Code_CODE_UNAUTHENTICATED:      {http.StatusUnauthorized, mcp.CodeInvalidRequest},
	commonv1.Code_CODE_FORBIDDEN:            {http.StatusForbidden, mcp.CodeInvalidRequest},
	commonv1.Code_CODE_HOST_REFUSED:         {http.StatusForbidden, mcp.CodeInvalidRequest},
	commonv1.Code_CODE_ORIGIN_REFUSED:       {http.StatusForbidden, mcp.CodeInvalidRequest},
	commonv1.Code_CODE_TOOL_UNKNOWN:         {http.StatusNotFound, mcp.CodeInvalidRequest}, // a server in a URL
	commonv1.Code_CODE_SESSION_UNKNOWN:      {http.StatusNotFound, mcp.CodeInvalidRequest},
	commonv1.Code_CODE_METHOD_DENIED:        {http.StatusNotFound, mcp.CodeMethodUnknown},
	commonv1.Code_CODE_MEDIA_TYPE:           {http.StatusUnsupportedMediaType, mcp.CodeInvalidRequest},
	commonv1.Code_CODE_ABUSE_LIMITED:        {http.StatusTooManyRequests, mcp.CodeInvalidRequest},
	commonv1.Code_CODE_POLICY_UNAVAILABLE:   {http.StatusServiceUnavailable, mcp.CodeInvalidRequest},
	commonv1.Code_CODE_UPSTREAM_UNAVAILABLE: {http.StatusServiceUnavailable, mcp.CodeInvalidRequest},
	commonv1.Code_CODE_HEADER_MISMATCH:      {http.StatusBadRequest, mcp.CodeHeaderMismatch},
	commonv1.Code_CODE_CAPABILITY_MISSING:   {http.StatusBadRequest, mcp.CodeCapabilityMissing},
	commonv1.Code_CODE_PROTOCOL_VERSION:     {http.StatusBadRequest, mcp.CodeVersionUnsupported},
	commonv1.Code_CODE_PARAMS_INVALID:       {http.StatusBadRequest, mcp.CodeInvalidParams},
	commonv1.Code_CODE_TOOL_NAME_INVALID:    {http.StatusBadRequest, mcp.CodeInvalidParams},
	commonv1.Code_CODE_JSON_INVALID:         {http.StatusBadRequest, mcp.CodeParse}, // JSON-RPC 2.0, section 5.1
	commonv1.Code_CODE_JSON_ENCODING:        {http.StatusBadRequest, mcp.CodeParse},
	commonv1.Code_CODE_JSON_TRAILING:        {http.StatusBadRequest, mcp.CodeParse},
}

func (r *Refusal) protocolError() protocolError {
	if out, ok := protocolErrors[r.Code]; ok {
		return out
	}
	return protocolError{http.StatusBadRequest, mcp.CodeInvalidRequest}
}

// Status returns the HTTP status of the answer. The status is 200 if the message was valid but the request was refused.
func (r *Refusal) Status() int {
	if !r.IsProtocolError {
		return http.StatusOK
	}
	return r.protocolError().status
}

// RPCCode returns the JSON-RPC error code of the answer, if the answer is an error.
func (r *Refusal) RPCCode() int {
	if !r.IsProtocolError {
		return mcp.CodeRefused
	}
	return r.protocolError().rpc
}
