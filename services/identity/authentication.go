package identity

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/oauth2"
	"google.golang.org/protobuf/types/known/timestamppb"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
)

// authenticationParameters returns the parameters of an authorization request for an authentication that meets the
// requirements in want (OpenID Connect Core, section 3.1.2.1). It returns nil if want contains no requirement.
func authenticationParameters(want *identityv1.AuthenticationRequest) (out []oauth2.AuthCodeOption) {
	if age := want.GetMaxAge(); age != nil {
		out = append(out, oauth2.SetAuthURLParam("max_age", strconv.FormatInt(int64(age.AsDuration()/time.Second), 10)))
	}
	if values := want.GetAcrValues(); len(values) > 0 {
		out = append(out, oauth2.SetAuthURLParam("acr_values", strings.Join(values, " ")))
	}
	return out
}

// limitAuthentication returns an error if the authentication in an ID token is in the future, or does not meet the
// requirements in want (OpenID Connect Core, section 3.1.3.7). The check is necessary because issuers may ignore the
// requested parameters. leeway is the allowed difference between the clocks of the mesh and the issuer. If the time of
// the authentication is in the future by less than leeway, limitAuthentication replaces it with the current time.
// Otherwise, the authentication would count as recent for too long.
func limitAuthentication(person *identityv1.Principal, want *identityv1.AuthenticationRequest, leeway time.Duration, now time.Time) error {
	at, age, values := person.GetAuthTime(), want.GetMaxAge(), want.GetAcrValues()
	switch {
	case at != nil && at.AsTime().After(now.Add(leeway)):
		return fmt.Errorf("%w: the time of the authentication (claim auth_time) is in the future", errRefused)
	case age != nil && at == nil:
		return fmt.Errorf("%w: the issuer does not say when you authenticated (claim auth_time), so it can't be checked that this was at most %v ago", errRefused, age.AsDuration())
	case age != nil && now.Sub(at.AsTime()) > age.AsDuration()+leeway:
		return fmt.Errorf("%w: you authenticated %v ago, and the sign-in asked for at most %v: the issuer has not asked you again; sign out there, and sign in again",
			errRefused, now.Sub(at.AsTime()).Truncate(time.Second), age.AsDuration())
	case len(values) > 0 && person.GetAcr() == "":
		return fmt.Errorf("%w: the issuer does not say how you authenticated (claim acr), and the sign-in asked for %s", errRefused, strings.Join(values, " or "))
	case len(values) > 0 && !slices.Contains(values, person.GetAcr()):
		return fmt.Errorf("%w: the authentication context class (claim acr) is %q, and the sign-in asked for %s", errRefused, person.GetAcr(), strings.Join(values, " or "))
	}
	if at != nil && at.AsTime().After(now) {
		person.AuthTime = timestamppb.New(now)
	}
	return nil
}
