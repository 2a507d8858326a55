package userservice

import (
	"fmt"
	"strings"
)

// variable is an environment variable of the service.
type variable struct{ Name, Value string }

// inherited contains the variables that the service gets from the environment of the process that calls Install. A
// service does not get the variables of the person's shell, but servers need PATH to find programs such as npx.
// Variables of the session, such as DBUS_SESSION_BUS_ADDRESS, come from the service manager.
var inherited = []string{
	"PATH", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "no_proxy", "all_proxy",
	"SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS",
}

// environment returns the variables for the service. It returns an error for a value that the service's definition
// can't or should not contain.
func (s *Service) environment() ([]variable, error) {
	var out []variable
	for _, name := range inherited {
		value := s.Getenv(name)
		if value == "" {
			continue
		}
		if strings.ContainsFunc(value, isControl) {
			return nil, fmt.Errorf("the variable %s has a control character, which a definition of a service can't have", name)
		}
		if strings.HasSuffix(strings.ToUpper(name), "_PROXY") && strings.Contains(value, "@") {
			return nil, fmt.Errorf("the variable %s has a password, which would be in the definition of the service: run this command without the variable", name)
		}
		out = append(out, variable{name, value})
	}
	return out, nil
}
