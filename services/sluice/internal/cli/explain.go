package cli

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/internal/viewtext"
)

// asked describes a request for errors: its target and its token.
type asked struct {
	// target is the address, and from is where the address comes from: a flag, a variable or the configuration.
	target, from string
	// token is where the token comes from.
	token string
}

// wrongRoleError means that a token of another role is needed.
type wrongRoleError struct{ error }

// checkAddr refuses an address that can't be a gRPC address. from is where the address comes from. An empty address is
// valid.
func checkAddr(from, addr string) error {
	if addr == "" {
		return nil
	}
	if strings.Contains(addr, "://") {
		return usageError{fmt.Errorf("%s %q is a URL: give the address of gRPC as HOST:PORT", from, addr)}
	}
	if _, port, err := net.SplitHostPort(addr); err != nil || port == "" {
		return usageError{fmt.Errorf("%s %q names no port: give the address of gRPC as HOST:PORT", from, addr)}
	}
	return nil
}

// explain returns what a failed request to the mesh means for the person at the command line.
func (t *tool) explain(err error) error {
	st, ok := status.FromError(err)
	if !ok {
		return err
	}
	reason, said := rpc.Reason(err), viewtext.Line(st.Message()) // it may quote an untrusted text
	switch code := st.Code(); {
	case reason == "" && (code == codes.Unavailable || code == codes.DeadlineExceeded):
		return t.unanswered(said)
	case reason == "CALLER_REFUSED" && rpc.Facts(err)["needs"] != "":
		return wrongRoleError{t.refused(rpc.Facts(err))}
	case code == codes.Unauthenticated:
		return fmt.Errorf("the token (%s) is not accepted: %s", t.asked.token, said)
	case reason == "SERVER_UNKNOWN":
		return fmt.Errorf("%s: %s lists those that there are", said, t.command("catalog servers"))
	case reason == "TOOL_UNKNOWN":
		return fmt.Errorf("%s: %s lists those that there are", said, t.command("catalog list"))
	default:
		return errors.New(said)
	}
}

// unanswered returns where a request went that had no answer, and possible reasons.
func (t *tool) unanswered(why string) error {
	at := fmt.Sprintf("%s (%s)", t.asked.target, t.asked.from)
	if strings.Contains(why, "frame too large") { // the first bytes of HTTP/1.1, read as a frame
		return fmt.Errorf("what answers at %s does not speak gRPC: is that the address of MCP? %s prints both", at, t.command("up"))
	}
	return fmt.Errorf("the mesh does not answer at %s: is it up? Another address is given by --addr, or by a configuration with --config or SLUICE_CONFIG (%s)", at, why)
}

// refused returns which roles may make the request, and where the token came from.
func (t *tool) refused(facts map[string]string) error {
	var needs []string
	for role := range strings.SplitSeq(facts["needs"], ",") {
		needs = append(needs, role+"'s")
	}
	last := len(needs) - 1
	list := needs[last]
	if last > 0 {
		list = strings.Join(needs[:last], ", ") + " or " + list
	}
	return fmt.Errorf("%s needs %s token; %s is that of %q, %s", t.called, withArticle(list), t.asked.token, facts["token"], withArticle(facts["role"]))
}

func withArticle(word string) string {
	if strings.ContainsRune("aeiou", rune(word[0])) {
		return "an " + word
	}
	return "a " + word
}
