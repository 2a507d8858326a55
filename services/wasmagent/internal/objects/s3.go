package objects

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// maxTries is how often a request is sent that the object store can not answer, or does not receive.
const maxTries = 3

// awsEndpoint is where buckets are whose URL names no endpoint.
const awsEndpoint = "https://s3.amazonaws.com"

// identity tries providers of credentials in order. Without credentials it fails, instead of sending requests that are
// not signed. It implements [credentials.Provider], whose methods are called one at a time.
type identity struct {
	providers []credentials.Provider
	// current is the provider whose credentials are used; nil before the first use.
	current credentials.Provider
}

// errNoCredentials means that no provider has credentials.
var errNoCredentials = errors.New("there are no credentials for the bucket: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role")

// Retrieve implements [credentials.Provider].
func (i *identity) Retrieve() (credentials.Value, error) { return i.RetrieveWithCredContext(nil) }

// RetrieveWithCredContext implements [credentials.Provider].
func (i *identity) RetrieveWithCredContext(with *credentials.CredContext) (credentials.Value, error) {
	failed := errNoCredentials
	for _, provider := range i.providers {
		value, err := provider.RetrieveWithCredContext(with)
		if err == nil && value.AccessKeyID != "" && value.SecretAccessKey != "" {
			i.current = provider
			return value, nil
		}
		failed = errors.Join(failed, err)
	}
	i.current = nil
	return credentials.Value{}, failed
}

// IsExpired implements [credentials.Provider].
func (i *identity) IsExpired() bool { return i.current == nil || i.current.IsExpired() }

// bucket is a bucket of an S3 object store.
type bucket struct {
	client *minio.Client
	name   string
}

// OpenS3 returns the bucket of a URL. For example, s3://agents?region=eu-central-1 is one of AWS, and
// s3://agents?endpoint=http://127.0.0.1:9000&use_path_style=true one of another object store. The credentials are those of
// the environment (AWS_ACCESS_KEY_ID and so on), of AWS's shared file, of a web identity, or of the machine. Nothing is
// sent before the first use.
func OpenS3(text string) (Bucket, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("the URL of the bucket: %w", err)
	}
	if u.Scheme != "s3" || u.Host == "" || u.User != nil || u.Path != "" && u.Path != "/" {
		return nil, fmt.Errorf("the bucket %s has not the form s3://NAME?region=REGION or file:///PATH", u.Redacted())
	}
	options := u.Query()
	for _, name := range slices.Sorted(maps.Keys(options)) {
		if !slices.Contains([]string{"region", "endpoint", "use_path_style"}, name) {
			return nil, fmt.Errorf("the URL of the bucket has the option %q; known are region, endpoint and use_path_style", name)
		}
	}
	endpoint := options.Get("endpoint")
	if endpoint == "" {
		for _, name := range []string{"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"} {
			if os.Getenv(name) != "" { //nolint:forbidigo // credentials are read from there, too
				return nil, fmt.Errorf("%s is set, and is not used: write its value as endpoint=URL into the URL of the bucket", name)
			}
		}
		endpoint = awsEndpoint
	}
	at, err := url.Parse(endpoint)
	if err != nil || at.Host == "" || at.User != nil || at.Scheme != "http" && at.Scheme != "https" || at.Path != "" && at.Path != "/" || at.RawQuery != "" {
		return nil, errors.New("the endpoint of the bucket has not the form http://HOST:PORT or https://HOST:PORT")
	}
	style := minio.BucketLookupAuto
	if text := options.Get("use_path_style"); text != "" {
		path, err := strconv.ParseBool(text)
		if err != nil {
			return nil, fmt.Errorf("use_path_style of the bucket is %q; write true or false", text)
		}
		style = minio.BucketLookupDNS
		if path {
			style = minio.BucketLookupPath
		}
	}
	client, err := minio.New(at.Host, &minio.Options{
		Creds:  credentials.New(&identity{providers: []credentials.Provider{new(credentials.EnvAWS), new(credentials.FileAWSCredentials), new(credentials.IAM)}}),
		Secure: at.Scheme == "https", Region: options.Get("region"), BucketLookup: style, MaxRetries: maxTries,
	})
	if err != nil {
		return nil, fmt.Errorf("the bucket %s: %w", u.Host, err)
	}
	return bucket{client, u.Host}, nil
}

// Write implements [Bucket].
func (b bucket) Write(ctx context.Context, key string, data []byte) error {
	_, err := b.client.PutObject(ctx, b.name, key, bytes.NewReader(data), int64(len(data)), minio.PutObjectOptions{
		ContentType: "application/octet-stream", DisableMultipart: true,
		DisableContentSha256: len(data) == 0, // a signed stream without a part has no Content-Length, which some stores require
	})
	return err
}

// Read implements [Bucket].
func (b bucket) Read(ctx context.Context, key string) (io.ReadCloser, error) {
	data, _, _, err := minio.Core{Client: b.client}.GetObject(ctx, b.name, key, minio.GetObjectOptions{})
	if err != nil && isMissing(err) {
		return nil, ErrNotFound
	}
	return data, err
}

// isMissing reports whether an object does not exist. A bucket that does not exist is another error.
func isMissing(err error) bool {
	answer := minio.ToErrorResponse(err)
	return answer.Code == minio.NoSuchKey || answer.StatusCode == http.StatusNotFound && answer.Code != minio.NoSuchBucket
}

// Close implements [Bucket].
func (bucket) Close() error { return nil }

// List implements [Bucket].
func (b bucket) List(ctx context.Context, first string) iter.Seq2[Object, error] {
	return func(yield func(Object, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		for object := range b.client.ListObjectsIter(ctx, b.name, minio.ListObjectsOptions{Prefix: strings.TrimSuffix(first, "/") + "/"}) {
			if object.Err != nil {
				yield(Object{}, object.Err)
				return
			}
			if !yield(Object{object.Key, object.LastModified}, nil) {
				return
			}
		}
	}
}

// Delete implements [Bucket].
func (b bucket) Delete(ctx context.Context, key string) error {
	if err := b.client.RemoveObject(ctx, b.name, key, minio.RemoveObjectOptions{}); err != nil && !isMissing(err) {
		return err
	}
	return nil
}
