package cli

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

// requestTarget describes a request for error messages.
type requestTarget struct {
	// address is the address of the request. addressFrom is the flag, variable or configuration that contains the address.
	address, addressFrom string
	// tokenFrom is the source of the token, such as a variable or a file.
	tokenFrom string
}

type wrongRoleError struct{ error }

// checkAddr returns an error unless the value of a flag or variable is empty or has the form HOST:PORT. The error
// contains the name of the flag or variable.
func checkAddr(from, addr string) error {
	if addr == "" {
		return nil
	}
	if strings.Contains(addr, "://") {
		return usageError{fmt.Errorf("%s must be the gRPC address as HOST:PORT, is the URL %q", from, addr)}
	}
	if _, port, err := net.SplitHostPort(addr); err != nil || port == "" {
		return usageError{fmt.Errorf("%s must be the gRPC address as HOST:PORT, is %q, which has no port", from, addr)}
	}
	return nil
}

// explainError converts the error of a failed gRPC request to an error with advice for a person.
func (t *tool) explainError(err error) error {
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	reason, message := rpc.Reason(err), safetext.Line(st.Message()) // the message may quote an untrusted string
	switch code := st.Code(); {
	case reason == "" && (code == codes.Unavailable || code == codes.DeadlineExceeded):
		return t.noAnswer(message)
	case reason == "CALLER_REFUSED" && rpc.Facts(err)["needs"] != "":
		return wrongRoleError{t.wrongRole(rpc.Facts(err))}
	case code == codes.Unauthenticated:
		return fmt.Errorf("the token (%s) is not accepted: %s", t.lastRequest.tokenFrom, message)
	case reason == "STEP_UP_REQUIRED":
		return t.stepUpError(err, message)
	case reason == "SERVER_UNKNOWN":
		return fmt.Errorf("%s: %s lists the servers", message, t.command("catalog servers"))
	case reason == "TOOL_UNKNOWN":
		return fmt.Errorf("%s: %s lists the tools", message, t.command("catalog list"))
	default:
		return errors.New(message)
	}
}

// noAnswer returns the error for a request without a response. The parameter why is the message of the gRPC error.
func (t *tool) noAnswer(why string) error {
	at := fmt.Sprintf("%s (%s)", t.lastRequest.address, t.lastRequest.addressFrom)
	if strings.Contains(why, "frame too large") { // the server answered in HTTP/1.1
		return fmt.Errorf("the server at %s does not speak gRPC: is this the address of MCP? %s prints both addresses", at, t.command("up"))
	}
	return fmt.Errorf("the mesh does not answer at %s: is it up? To use another address, set --addr, or name a configuration with --config or SLUICE_CONFIG (%s)", at, why)
}

// wrongRole returns the error for a request that needs a token with another role. The parameter facts contains the
// details of the gRPC error.
func (t *tool) wrongRole(facts map[string]string) error {
	var needs []string
	for role := range strings.SplitSeq(facts["needs"], ",") {
		needs = append(needs, role+"'s")
	}
	last := len(needs) - 1
	list := needs[last]
	if last > 0 {
		list = strings.Join(needs[:last], ", ") + " or " + list
	}
	return fmt.Errorf("%s needs %s token; the token in %s is %q, the token of %s", t.commandName, withArticle(list), t.lastRequest.tokenFrom, facts["token"], withArticle(facts["role"]))
}

func withArticle(word string) string {
	if strings.ContainsRune("aeiou", rune(word[0])) {
		return "an " + word
	}
	return "a " + word
}
