package notice

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	netmail "net/mail"
	"os"
	"strconv"

	"github.com/wneessen/go-mail"
	"google.golang.org/protobuf/proto"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/approval/internal/store"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/viewtext"
)

// Mail is a mail server, and whom it writes to. A mail tells who asks for what and
// names the command that decides; it holds no value of an argument.
type Mail struct {
	// Server takes mails by SMTP: `HOST:PORT`.
	Server string
	// TLS is `starttls`, also where it is empty: nothing is said before; `tls` from
	// the first byte; or `none`, to a server on this very machine.
	TLS string
	// CA is a PEM file of the authorities that the server's certificate is from;
	// empty for those of the system.
	CA string
	// User and Password are the sender's account; both are empty, or neither.
	User     string
	Password config.Secret
	// From is the sender's address.
	From string
	// Lists are written to.
	Lists []MailList
}

// MailList is people who get the same mails: about what waits for somebody. What
// has been decided meanwhile they are not told.
type MailList struct {
	Target
	// To are their addresses; at least one.
	To []string
}

const (
	startTLS   = "starttls"
	tlsAtOnce  = "tls"
	withoutTLS = "none"
)

func (m *Mail) validate() error {
	var errs []error
	host, port, err := net.SplitHostPort(m.Server)
	if n, err2 := strconv.Atoi(port); err != nil || err2 != nil || host == "" || n < 1 || n > 65535 {
		errs = append(errs, errors.New("notices: the mail server is `HOST:PORT`"))
	}
	switch m.TLS {
	case "", startTLS, tlsAtOnce:
	case withoutTLS:
		if !loopback(host) || m.Password != "" {
			errs = append(errs, errors.New("notices: mail goes without TLS to this very machine alone, and without a password"))
		}
	default:
		errs = append(errs, errors.New("notices: the mail server's tls is `starttls`, `tls` or `none`"))
	}
	if (m.User == "") != (m.Password == "") {
		errs = append(errs, errors.New("notices: the mail server's account has a user and a password, or neither"))
	}
	if _, err := netmail.ParseAddress(m.From); err != nil {
		errs = append(errs, fmt.Errorf("notices: %q is no address to send mail from", m.From))
	}
	if len(m.Lists) == 0 {
		errs = append(errs, errors.New("notices: mail has lists of people to write to"))
	}
	return errors.Join(errs...)
}

// list is one list with its server.
type list struct {
	*Mail
	MailList
}

func (l *list) target() Target { return l.Target }

func (l *list) validate() error {
	errs := []error(nil)
	if len(l.To) == 0 {
		errs = append(errs, fmt.Errorf("notices: %s: nobody is written to", l.Name))
	}
	for _, to := range l.To {
		if _, err := netmail.ParseAddress(to); err != nil {
			errs = append(errs, fmt.Errorf("notices: %s: %q is no address", l.Name, to))
		}
	}
	return errors.Join(errs...)
}

func (l *list) open(Deps) (Channel, error) {
	host, port, err := net.SplitHostPort(l.Server)
	if err != nil {
		return nil, err
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return nil, err
	}
	opts := []mail.Option{mail.WithPort(number), mail.WithTimeout(sendTime)}
	switch l.TLS {
	case tlsAtOnce:
		opts = append(opts, mail.WithSSL())
	case withoutTLS:
		opts = append(opts, mail.WithTLSPolicy(mail.NoTLS))
	default:
		opts = append(opts, mail.WithTLSPolicy(mail.TLSMandatory))
	}
	if l.CA != "" {
		pem, err := os.ReadFile(l.CA)
		if err != nil {
			return nil, fmt.Errorf("read the mail server's authorities: %w", err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s holds no certificate", l.CA)
		}
		opts = append(opts, mail.WithTLSConfig(&tls.Config{ServerName: host, MinVersion: tls.VersionTLS12, RootCAs: roots}))
	}
	if l.User != "" {
		opts = append(opts, mail.WithSMTPAuth(mail.SMTPAuthAutoDiscover), mail.WithUsername(l.User), mail.WithPassword(string(l.Password)))
	}
	if _, err := mail.NewClient(host, opts...); err != nil {
		return nil, fmt.Errorf("set up mail: %w", err)
	}
	return &mails{list: l, host: host, opts: opts}, nil
}

// mails writes to one list.
type mails struct {
	*list
	host string
	opts []mail.Option
}

// Send implements Channel.
func (c *mails) Send(ctx context.Context, m *Message) (string, error) {
	if m.View == nil {
		return "", ErrMoot
	}
	msg, err := c.write(m)
	if err != nil {
		return "", fmt.Errorf("write a mail: %w", err)
	}
	client, err := mail.NewClient(c.host, c.opts...) // one client has one connection
	if err != nil {
		return "", fmt.Errorf("set up mail: %w", err)
	}
	if err := client.DialAndSendWithContext(ctx, msg); err != nil {
		return "", fmt.Errorf("send a mail: %w", err)
	}
	return "", nil
}

func (c *mails) write(m *Message) (*mail.Msg, error) {
	msg := mail.NewMsg()
	if err := errors.Join(msg.From(c.From), msg.To(c.To...)); err != nil {
		return nil, err
	}
	what := fmt.Sprintf("%s %s, asked for by %s", m.View.GetServer(), m.View.GetName(), m.View.GetSubject())
	subject := "Approve? " + what
	if m.Kind == store.Escalated {
		subject = "Nobody has decided yet: " + what
	}
	msg.Subject(subject)
	msg.SetMessageIDWithValue(m.ID + "@sluice")
	msg.SetDateWithValue(m.Due)
	msg.SetGenHeader("Auto-Submitted", "auto-generated") // RFC 3834, section 5
	msg.SetBodyString(mail.TypeTextPlain, fmt.Sprintf("A call waits for a person's decision.\n\n%s\n%s", facts(m.View), commands(m.View)))
	return msg, nil
}

// facts are those of a view without any argument's value.
func facts(v *approvalv1.View) string {
	v = proto.CloneOf(v)
	v.PreviousApprovalId, v.Changes, v.ChangesTotal = "", nil, 0
	return viewtext.Facts(v)
}

// commands are how a person decides who has seen the facts alone.
func commands(v *approvalv1.View) string {
	return fmt.Sprintf("This shows the arguments and then asks:\n\n  sluice approvals approve %[1]s\n  sluice approvals deny %[1]s\n", v.GetApprovalId())
}
