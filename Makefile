# Targets that users and CI run. Everything is built into build/ and bin/.
GO      ?= go
FORK    := bin/minio
STOCK   := bin/minio-stock
RACE    := bin/minio-race
S3RDMA  := bin/s3rdma

.PHONY: help all test test-unit test-minio test-conformance test-race soak test-peers test-softroce test-report lint fuzz bench bench-network bench-go bench-checksum bench-direct demo minio clean

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

all: minio $(S3RDMA) ## build the MinIO fork and the s3rdma command

minio: ## build MinIO with the plugin into bin/minio (the first time takes minutes)
	$(GO) run ./adapters/minio/fork -o $(FORK)

$(STOCK):
	$(GO) run ./adapters/minio/fork -stock -o $(STOCK)

$(RACE):
	$(GO) run ./adapters/minio/fork -race -o $(RACE)

.PHONY: $(STOCK) $(RACE) $(S3RDMA)
$(S3RDMA):
	$(GO) build -o $(S3RDMA) ./conformance/cmd/s3rdma

demo: ## the main job: build the fork, move real files over shared memory, compare every byte
	$(GO) run ./conformance/cmd/s3rdma demo

test: lint test-unit test-report test-minio test-conformance test-race test-peers test-softroce ## everything that CI runs

lint:
	@test -z "$$(gofmt -l . | tee /dev/stderr)" || { echo 'run gofmt -w on these files' >&2; exit 1; }
	$(GO) vet ./...
	$(GO) -C adapters/minio vet ./...
	$(GO) -C conformance/awssdk vet ./...

test-unit: ## all packages with the race detector, no server needed
	$(GO) test -race ./...
	$(GO) -C adapters/minio test -race ./...

test-report: ## the reports' pages in a real browser: needs chromium
	$(GO) test -count=1 -v -run 'Page|^TestLook' ./conformance ./conformance/bench ./conformance/browser

# What the tests of whole servers need to know. Their results are never cached.
SERVERS  = S3RDMA_FORK=$(CURDIR)/$(FORK) S3RDMA_STOCK=$(CURDIR)/$(STOCK)

test-minio: minio $(STOCK) ## the suite against the fork over each fabric, and interop with stock MinIO
	$(SERVERS) $(GO) test -count=1 -timeout 20m ./conformance/e2e/... ./conformance/minioproc ./conformance/sumbench ./conformance/cmd/...
	$(SERVERS) $(GO) -C adapters/minio test -count=1 -timeout 30m ./forktest
	$(SERVERS) $(GO) test -count=1 -timeout 20m -skip '^TestPage|^TestNetwork' ./conformance/bench
	$(SERVERS) $(GO) -C conformance/awssdk test -count=1 ./...

# A module of its own, which never enters ours. Without it the trial says so.
VERSITYGW := bin/versitygw
$(VERSITYGW):
	-GOWORK=off GOBIN=$(CURDIR)/bin $(GO) install github.com/versity/versitygw/cmd/versitygw@v1.8.0

test-conformance: minio $(STOCK) $(S3RDMA) $(VERSITYGW) ## the suite at servers of which is known what it must find
	$(S3RDMA) trial --minio $(FORK) --stock $(STOCK) --versitygw $(VERSITYGW) --reports build/conformance

# Without the two tests that only read and write much, one request after another.
test-race: $(RACE) ## the fork's own tests, with the race detector in MinIO
	S3RDMA_SOAK=20s S3RDMA_FORK=$(CURDIR)/$(RACE) $(GO) -C adapters/minio test -count=1 -timeout 30m -skip '^(TestLayouts|TestRandomObjects)$$' ./forktest

soak: minio ## 64 clients for ten minutes, with staging memory for a few of them
	S3RDMA_SOAK=10m $(SERVERS) $(GO) -C adapters/minio test -count=1 -v -timeout 30m -run '^TestSoak$$' ./forktest

test-peers: minio $(STOCK) $(S3RDMA) ## other projects' tests, unchanged: no difference between stock and fork
	GOWORK=off $(GO) -C conformance/peers/versitygw vet .
	$(SERVERS) $(GO) test -count=1 ./conformance/peers
	$(S3RDMA) peers --minio $(FORK) --stock $(STOCK)

# RDMA=skip leaves it out where no VM can be had, and says so.
RDMA ?= run
test-softroce: minio ## the verbs fabric, and the suite over it, on Soft-RoCE in a VM, with and without packet loss
	@case "$(RDMA)" in \
	skip) echo '*** RDMA IS NOT TESTED: RDMA=skip left out the verbs fabric and the suite over it ***' >&2 ;; \
	*) set -x; $(GO) run ./conformance/softroce -minio $(FORK) ;; \
	esac

# Every parser of outside bytes has a target. FUZZJOBS run at once, one worker each, so
# that a minute for all of them fits into continuous integration. (Go's fuzzer, when its
# time is over in the middle of something, may call that a failure of the target.)
FUZZTIME ?= 60s
FUZZJOBS ?= 2
fuzz: ## each fuzz target for FUZZTIME, FUZZJOBS at a time
	@$(GO) test -list '^Fuzz' ./... | awk '/^Fuzz/ {f[n++] = $$1} /^ok/ {for (i = 0; i < n; i++) print $$2, f[i]; n = 0}' | \
		xargs -P $(FUZZJOBS) -L 1 sh -c 'out=$$($(GO) test -run "^$$" -fuzz "^$$1\$$" -parallel 1 -fuzztime $(FUZZTIME) "$$0" 2>&1) || \
			case "$$out" in *"ailing input"*|*"seed corpus"*) false ;; *"    context deadline exceeded"*) ;; *) false ;; esac || \
			{ printf "%s\n" "$$out" >&2; exit 1; }; echo "fuzz $$0 $$1: $$(printf "%s\n" "$$out" | grep -o "execs: [0-9]*" | tail -1)"'

bench-checksum: minio ## what checksums over the region cost, every algorithm against none, over shared memory
	$(GO) run ./conformance/sumbench -minio $(FORK)

bench-direct: minio $(STOCK) $(S3RDMA) ## the fork over shared memory against stock by HTTP and against its floor, on the disk of TMPDIR
	@mkdir -p build
	$(S3RDMA) bench --direct --minio $(FORK) --stock $(STOCK) --repeat 7 --json build/bench-direct.json

bench: minio $(STOCK) $(S3RDMA) ## objects and tensors, the client idle and computing, over shared memory against HTTP: build/bench.html and .json
	@mkdir -p build
	$(S3RDMA) bench --minio $(FORK) --stock $(STOCK) --repeat 9 --window 700ms --json build/bench.json --html build/bench.html

bench-network: minio $(STOCK) $(S3RDMA) ## tcp against HTTP with loss, delay, reordering, competing flows: as root, where the kernel has netem
	@mkdir -p build
	$(S3RDMA) bench --network --minio $(FORK) --stock $(STOCK) --json build/bench-network.json --html build/bench-network.html

bench-go: ## Go benchmarks of the parts
	$(GO) test -run '^$$' -bench . -benchmem ./rdmaio/... ./checksum/... ./plugin/...

clean:
	rm -rf bin build
