package cli

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/oauth2"
	"google.golang.org/protobuf/types/known/durationpb"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

const (
	// minAuthAge and maxAuthAge are the minimum and the maximum value of `login --max-age`.
	minAuthAge, maxAuthAge = time.Minute, 24 * time.Hour
	// maxACRValues is the maximum number of values of --acr. maxACRBytes is the maximum length of each value.
	maxACRValues, maxACRBytes = 8, 256
	// anyAuthAge is the max_age for a sign-in that accepts any authentication, however old. The request needs a max_age,
	// because without it an issuer need not send the claim auth_time (OpenID Connect Core, section 3.1.2.1). The value is
	// so large that an issuer does not ask people to authenticate again.
	anyAuthAge = 365 * 24 * time.Hour
)

// checkAuthentication returns an error if --max-age or --acr is invalid.
func (l *loginFlags) checkAuthentication() error {
	if l.maxAge != 0 && (l.maxAge < minAuthAge || l.maxAge > maxAuthAge || l.maxAge%time.Second != 0) {
		return fmt.Errorf("--max-age must be between 1m and 24h, in whole seconds, is %v", l.maxAge)
	}
	if len(l.acr) > maxACRValues {
		return fmt.Errorf("at most %d classes can be set with --acr", maxACRValues)
	}
	for i, class := range l.acr {
		if class == "" || len(class) > maxACRBytes || strings.ContainsFunc(class, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' }) {
			return fmt.Errorf("--acr %q is not a class: use 1 to %d printable ASCII characters without spaces, \" and \\", class, maxACRBytes)
		}
		if slices.Contains(l.acr[:i], class) {
			return fmt.Errorf("--acr %s is set twice", class)
		}
	}
	return nil
}

// authentication returns the authentication that the flags require, or nil if they require none.
func (l *loginFlags) authentication() *identityv1.AuthenticationRequest {
	if l.maxAge == 0 && len(l.acr) == 0 {
		return nil
	}
	out := &identityv1.AuthenticationRequest{AcrValues: l.acr}
	if l.maxAge != 0 {
		out.MaxAge = durationpb.New(l.maxAge)
	}
	return out
}

// authenticationParameters returns the parameters of an authorization request that require certain authentication.
func authenticationParameters(want *identityv1.AuthenticationRequest) []oauth2.AuthCodeOption {
	age := anyAuthAge
	if want.GetMaxAge() != nil {
		age = want.GetMaxAge().AsDuration()
	}
	out := []oauth2.AuthCodeOption{oauth2.SetAuthURLParam("max_age", strconv.FormatInt(int64(age/time.Second), 10))}
	if values := want.GetAcrValues(); len(values) > 0 {
		out = append(out, oauth2.SetAuthURLParam("acr_values", strings.Join(values, " ")))
	}
	return out
}

// stepUpError returns the error for a vote that needs another sign-in. It contains the command to run, with parameters
// from the details of the gRPC error. The command requires an authentication whose age is at most half the maximum age.
// If it accepted the maximum age, the authentication could become too old before the person has voted.
func (t *tool) stepUpError(err error, message string) error {
	facts := rpc.Facts(err)
	words := []string{"login"}
	if role := facts["role"]; role == "approver" || role == "operator" {
		words = append(words, "--role", role)
	}
	if seconds, err := strconv.ParseInt(facts["max_age"], 10, 64); err == nil && seconds > 0 && seconds <= int64(maxAuthAge/time.Second) {
		age := max(time.Duration(seconds/2)*time.Second, minAuthAge)
		words = append(words, "--max-age", safetext.ShortDuration(age))
	}
	for class := range strings.FieldsSeq(facts["acr_values"]) {
		words = append(words, "--acr", safetext.Line(class))
	}
	return errors.New(message + ". Run " + t.command(shellWords(words...)) + ", and then vote again")
}
