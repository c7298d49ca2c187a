# Coderack. Bare `make` prints the targets. ENV picks the environment: a folder of inventories/ (lab, aws, baremetal, …).

SHELL := /bin/bash
.DEFAULT_GOAL := help
.SUFFIXES:
MAKEFLAGS += --no-builtin-rules
.NOTPARALLEL:
ifneq ($(words $(CURDIR)),1)
$(error this clone lies in "$(CURDIR)"; wanted: a path without spaces, which make and ssh cannot take)
endif

ENV ?= lab
ARGS ?=
TERRAFORM ?= terraform
# The first Python that is new enough; set PYTHON to choose another.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { command -v $$p; exit; }; done; echo python3)

BUILD := .build
VENV := $(BUILD)/venv
CHECKOV := $(BUILD)/checkov
BIN := $(CURDIR)/$(VENV)/bin
LAB := env PYTHONPATH=$(CURDIR)/tests/lab $(BIN)/python -m coderack_lab
PREFLIGHT := $(PYTHON) tests/lab/coderack_lab/preflight.py
COLLECTIONS := $(BUILD)/collections/ansible_collections

export TERRAFORM
export PATH := $(BIN):$(PATH)
export ANSIBLE_CONFIG := $(CURDIR)/ansible/ansible.cfg
export ANSIBLE_HOME := $(CURDIR)/$(BUILD)/ansible
export TF_DATA_DIR := $(CURDIR)/$(BUILD)/$(ENV)/terraform/data
export TF_IN_AUTOMATION := 1

# An unpacked provider mirror, where a machine has one, is used instead of the network; elsewhere nothing changes.
TF_MIRROR ?= /opt/tf-plugins
export TF_MIRROR
ifneq ($(wildcard $(TF_MIRROR)/*/hashicorp/aws),)
export TF_CLI_CONFIG_FILE := $(CURDIR)/$(BUILD)/terraform.rc
TERRAFORM_RC := $(BUILD)/terraform.rc
else ifeq ($(wildcard $(TF_CLI_CONFIG_FILE)),)
unexport TF_CLI_CONFIG_FILE
endif

# What an environment says of itself: its stack, whether it is protected, and what the tools need (endpoints, region); never
# secrets.
-include inventories/$(ENV)/env.mk
# Whoever forgets to say it did not mean to have machines destroyed.
PROTECTED ?= yes

STACK_DIR := terraform/stacks/$(STACK)
ENV_DIR := $(CURDIR)/inventories/$(ENV)
TFVARS := $(ENV_DIR)/terraform.tfvars
# The capacity that `coderack fleet reserve` bought, once it has.
VAR_FILES := -var-file=$(TFVARS) $(addprefix -var-file=,$(wildcard $(ENV_DIR)/reservation.auto.tfvars.json))
BACKEND := $(ENV_DIR)/backend.hcl
# Each run has a plan of its own, named by make's process: what another run plans meanwhile must not be applied by this one,
# whose guard and operator have seen something else.
PLAN := $(CURDIR)/$(BUILD)/$(ENV)/terraform/plan.$(shell echo $$PPID)
NEW_PLAN = umask 077 && mkdir -p $(dir $(PLAN)) && rm -f $(dir $(PLAN))plan.*
PLAN_THERE = test -f $(PLAN) || { echo "$(PLAN) is gone, another run has planned $(ENV) since; wanted: one run at a time. Nothing was changed; run this again." >&2; exit 2; }
TF := $(TERRAFORM) -chdir=$(STACK_DIR)
# The root that makes the bucket of the state. It is no part of a stack, so neither are its working files.
BOOTSTRAP := TF_DATA_DIR=$(CURDIR)/$(BUILD)/$(ENV)/bootstrap/data $(TERRAFORM) -chdir=terraform/bootstrap
BOOTSTRAP_PLAN := $(CURDIR)/$(BUILD)/$(ENV)/bootstrap/plan
CONFIRM := terraform/confirm
export ALLOW YES
PLAYBOOK := ansible-playbook -i inventories/$(ENV)

.PHONY: help
help: ## This list
	@awk -F ':.*## ' '/^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z][a-z0-9-]*:.*## / {printf "  %-15s %s\n", $$1, $$2}' Makefile

##@ Start here
.PHONY: demo test test-fast
demo: preflight host-packages $(VENV)/ready $(COLLECTIONS) $(TERRAFORM_RC) ## The main job in the embedded lab: nodes, engines, gateway, an answered question
	@exec $(LAB) demo

test: ## Everything that is tested: lint, unit, Terraform, roles, lab end to end
	@exec tests/run_all

test-fast: $(VENV)/ready $(COLLECTIONS) ## Lint and unit tests, neither lab nor simulated GPU nodes
	@$(MAKE) --no-print-directory lint unit

##@ An environment (ENV=lab, ENV=aws, ENV=baremetal, …)
.PHONY: bootstrap plan provision fleet drift host-keys rotate-key configure check smoke stop destroy
bootstrap: env-known stack-known terraform-there $(TERRAFORM_RC) ## Once per environment on AWS: the bucket for Terraform's state (REGION=…)
	@[ "$(STACK)" = aws ] || { echo "bootstrap: STACK of $(ENV) is $(STACK), whose state is a file; wanted: an environment on AWS. Nothing to do." >&2; exit 2; }
	@mkdir -p $(dir $(BOOTSTRAP_PLAN))
	$(BOOTSTRAP) init -input=false -lockfile=readonly -reconfigure -backend-config=path=$(ENV_DIR)/bootstrap.tfstate
	$(BOOTSTRAP) plan -input=false -var env=$(ENV) -var 'region=$(REGION)' $(if $(BUCKET),-var 'bucket=$(BUCKET)',) -out=$(BOOTSTRAP_PLAN)
	@$(BOOTSTRAP) show -json $(BOOTSTRAP_PLAN) | $(CONFIRM) $(ENV) -
	$(BOOTSTRAP) apply -input=false $(BOOTSTRAP_PLAN)
	@$(BOOTSTRAP) output -raw backend >$(BACKEND).partial
	@[ ! -e $(BACKEND) ] || cmp -s $(BACKEND).partial $(BACKEND) || { echo "bootstrap: $(BACKEND) names another place than $(BACKEND).partial; wanted: one place for the state. Compare them, and keep the one in which the state is." >&2; exit 1; }
	@mv $(BACKEND).partial $(BACKEND)
	@echo '$(BACKEND) says where the state lies. Commit it. Next: make provision ENV=$(ENV)'

plan: planned ## What `provision` would change; fails if a GPU node or the weights would go (ALLOW='<address> …' permits it)

provision: planned confirmed applied written ## Make the machines with Terraform, after showing the plan and asking, and write the inventory

fleet: initialised written ## Write inventories/ENV/hosts.yml from Terraform's fleet output

drift: env-known inventory-there initialised ## Whether the inventory still is what Terraform's state says, and on AWS what EC2 says
	coderack fleet check --env $(ENV) --from $(STACK_DIR) $(if $(filter aws,$(STACK)),--live,)

host-keys: env-known inventory-there $(VENV)/ready ## Pin the nodes' SSH host keys; Ansible talks to no others (ARGS='--accept-changed gpu-a')
	coderack fleet host-keys --env $(ENV) $(ARGS)

rotate-key: env-known initialised ## A new API key for NAME=…, in inventories/ENV/secrets and on AWS in Secrets Manager
	coderack keys rotate --env $(ENV) $(if $(filter aws,$(STACK)),--from $(STACK_DIR),--local) -- "$(NAME)"

configure: env-known inventory-there $(VENV)/ready $(COLLECTIONS) ## Make the nodes what they should be: ansible-playbook site.yml
	$(PLAYBOOK) ansible/site.yml $(ARGS)

check: env-known inventory-there $(VENV)/ready $(COLLECTIONS) ## What `configure` would change: --check --diff
	$(PLAYBOOK) ansible/site.yml --check --diff $(ARGS)

smoke: env-known inventory-there $(VENV)/ready $(COLLECTIONS) ## Ask the endpoint, try wrong keys, look for every engine in Prometheus
	$(PLAYBOOK) ansible/playbooks/smoke.yml $(ARGS)

stop: env-known inventory-there $(VENV)/ready $(COLLECTIONS) ## Stop serving on all GPU nodes (`make configure` starts it again)
	$(PLAYBOOK) ansible/playbooks/stop.yml $(ARGS)

destroy: env-known unprotected variables-there no-other-state initialised ## Terraform destroys the machines, after showing the plan and asking; never of a protected environment
	@$(NEW_PLAN)
	umask 077 && $(TF) plan -destroy -input=false $(VAR_FILES) -out=$(PLAN)
	@$(TF) show -json $(PLAN) | $(CONFIRM) $(ENV) -
	@$(PLAN_THERE)
	$(TF) apply -input=false $(PLAN)
	@rm -f $(PLAN)

##@ The lab
.PHONY: lab-up lab-down lab-status lab-ssh lab-fault lab-cache lab-clean lab-snapshot
lab-up: preflight host-packages $(VENV)/ready ## Cache, network and cloud; then `make provision host-keys configure`
	@exec $(LAB) up

lab-down: $(VENV)/ready ## Take everything down, also what a killed run left
	@exec $(LAB) down

lab-status: $(VENV)/ready ## Which nodes are up, which faults are in, where the pages are
	@exec $(LAB) status

lab-ssh: $(VENV)/ready ## A shell on a node: NODE=gpu-a, or one command: CMD='…'
	@exec $(LAB) ssh -- "$(NODE)" $(if $(CMD),'$(CMD)',)

lab-fault: $(VENV)/ready ## Break something: NODE=gpu-b KIND=partition|loss|slow|power|uplink [REPAIR=1]
	@exec $(LAB) fault $(if $(REPAIR),--repair,) -- "$(KIND)" "$(NODE)"

lab-cache: preflight host-packages $(VENV)/ready ## Fill the cache only (base image, vLLM, models)
	@exec $(LAB) prepare

lab-clean: $(VENV)/ready ## lab-down, and remove the cache
	@exec $(LAB) clean

lab-snapshot: $(VENV)/ready ## List what a lab could leave on this host (compare with ARGS='--compare FILE')
	@$(LAB) snapshot $(ARGS)

##@ Development
.PHONY: lint scan format unit health-test terraform-test roles-test e2e venv lock
lint: $(VENV)/ready $(CHECKOV)/ready $(COLLECTIONS) ## ruff, mypy, ansible-lint, yamllint, checkov, terraform fmt and validate, shellcheck
	@exec tests/lint

.PHONY: terraform-lint
terraform-lint: terraform-there $(TERRAFORM_RC)
	$(TERRAFORM) fmt -check -recursive -diff terraform inventories
	@for root in terraform/bootstrap terraform/stacks/*; do \
		export TF_DATA_DIR=$(CURDIR)/$(BUILD)/lint/$$root; echo "terraform validate: $$root"; \
		$(TERRAFORM) -chdir=$$root init -backend=false -input=false -lockfile=readonly >/dev/null && $(TERRAFORM) -chdir=$$root validate || exit; done

scan: $(CHECKOV)/ready ## checkov on the Terraform code: what is risky, and every exception with its reason
	@$(CHECKOV)/bin/checkov --config-file .checkov.yml

format: $(VENV)/ready ## Rewrite Python and Terraform in their standard form
	ruff format .
	ruff check --fix .
	$(TERRAFORM) fmt -recursive terraform inventories

.PHONY: vllm-lock
VLLM ?= 0.32.0
VLLM_LOCK ?= roles/vllm/files/vllm-$(VLLM).lock
# Resolved from the indexes' metadata alone, for the nodes and not for this machine; nothing is downloaded or installed. The
# requirement lies in a project of its own because uv reads the platforms only there.
vllm-lock: $(VENV)/ready ## The lock file of vLLM's environment for VLLM=… (further index: ARGS='--index URL'; another file: VLLM_LOCK=…)
	pip install -q uv
	@mkdir -p $(BUILD)/vllm-lock
	@printf '%s\n' '[project]' 'name = "vllm-environment"' 'version = "0"' 'requires-python = ">=3.11,<3.14"' 'dependencies = ["vllm==$(VLLM)"]' \
		'[tool.uv]' "environments = [\"sys_platform == 'linux' and platform_machine == 'x86_64' and implementation_name == 'cpython'\"]" \
		>$(BUILD)/vllm-lock/pyproject.toml
	cd $(BUILD)/vllm-lock && uv pip compile --universal --python-version 3.11 --no-build --generate-hashes --no-emit-index-url --no-annotate \
		--no-header $(ARGS) pyproject.toml -o lock >/dev/null
	@mkdir -p $(dir $(VLLM_LOCK)) && mv $(BUILD)/vllm-lock/lock $(VLLM_LOCK)
	@echo "$(VLLM_LOCK) holds $$(grep -c '^[a-z0-9].*==' $(VLLM_LOCK)) packages. Next: vllm_version: $(VLLM) and vllm_colour in group_vars"

# One process per core, each with whole files, since what a file's tests share (a run of Ansible, a built library) is made once.
unit: $(VENV)/ready $(COLLECTIONS) ## Unit tests of the package, the lab and the Ansible module
	pytest tests/unit tests/roles -m 'not simulated_node' -n auto --maxprocesses 4 --dist loadfile $(ARGS)

# Not with the others: each pass over a node forks a dozen processes, which is slow from a pytest that has loaded everything.
health-test: $(VENV)/ready ## `coderack health` on simulated GPU nodes, each fault by itself
	pytest tests/unit -m simulated_node $(ARGS)

terraform-test: terraform-there $(VENV)/ready $(TERRAFORM_RC) ## The stacks: on the AWS emulator apply, plan, refuse, destroy; refusals; what make does with them
	pytest tests/terraform $(ARGS)

roles-test: $(VENV)/ready $(COLLECTIONS) ## molecule for every role, each on a fresh lab node (the lab must be up)
	tests/roles/run $(ARGS)

e2e: $(VENV)/ready $(COLLECTIONS) ## The lab end to end: takes the lab down and up again
	pytest tests/e2e $(ARGS)

venv: $(VENV)/ready ## The project's Python environment, from the lock file

LOCK := uv pip compile --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header $(if $(UPGRADE),--upgrade,)
lock: $(VENV)/ready ## Resolve the .lock files in tools anew (UPGRADE=1 for newer versions)
	pip install -q uv
	$(LOCK) --universal --all-extras pyproject.toml -o tools/requirements.lock
	$(LOCK) --universal tools/checkov.in -o tools/checkov.lock
# No markers in this one: role coderack installs it for the node's Python, and pip would judge them by the controller's.
	$(LOCK) --python-platform linux --extra node pyproject.toml -o tools/node.lock
	$(LOCK) --python-platform linux --extra node --extra weights pyproject.toml -o tools/node-s3.lock

# What the targets above stand on.
.PHONY: preflight host-packages host-packages-fast env-known stack-known terraform-there variables-there backend-there no-other-state inventory-there unprotected
preflight:
	@$(PREFLIGHT) --for demo

# Root gets what is missing installed; anybody else is told, since lint and unit tests need no root otherwise.
host-packages host-packages-fast:
	@packages="$$($(PREFLIGHT) --list-packages --for $(if $(filter %-fast,$@),fast,demo))"; [ -z "$$packages" ] || { \
		[ "$$(id -u)" = 0 ] || { echo "host packages missing: $$packages; wanted: installed. As root: apt-get install $$packages" >&2; exit 2; }; \
		echo "host packages: installing $$packages" >&2; mkdir -p $(BUILD); \
		{ apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -qy install --no-install-recommends $$packages; } >$(BUILD)/apt.log 2>&1 \
			|| { tail -n 15 $(BUILD)/apt.log >&2; echo "host packages: apt-get failed; whole log: $(BUILD)/apt.log" >&2; exit 1; }; }

env-known:
	@[[ "$(ENV)" =~ ^[a-z0-9-]+$$ && -d "inventories/$(ENV)/group_vars" ]] || { echo "ENV=$(ENV) is unknown; wanted one of: $$(cd inventories && ls -d */group_vars | cut -d/ -f1 | xargs)" >&2; exit 2; }

terraform-there:
	@TERRAFORM=$(TERRAFORM) $(PYTHON) tests/lab/coderack_lab/preflight.py --for terraform

stack-known: env-known
	@[[ "$(STACK)" =~ ^[a-z]+$$ && -d "$(STACK_DIR)" ]] || { echo "STACK of $(ENV) is \"$(STACK)\"; wanted one of: $$(ls terraform/stacks | xargs). Say it in inventories/$(ENV)/env.mk." >&2; exit 2; }

variables-there: env-known
	@test -f $(TFVARS) || { echo "$(TFVARS) is not there; wanted: the stack's variables. Copy $(TFVARS).example and fill it in." >&2; exit 2; }

backend-there: stack-known
	@test -f $(BACKEND) || { echo "$(BACKEND) is not there; wanted: where Terraform's state lies. $(if $(filter aws,$(STACK)),Run \`make bootstrap ENV=$(ENV) REGION=<region>\` once,Write it after the pattern of inventories/baremetal/backend.hcl)." >&2; exit 2; }

# The state of stacks/aws used to be a file here. Beside it an empty one in S3 would have the machines made a second time.
no-other-state: stack-known
	@[ "$(STACK)" != aws ] || [ ! -s inventories/$(ENV)/terraform.tfstate ] || { echo "inventories/$(ENV)/terraform.tfstate holds a state, and stacks/aws keeps its own in S3 now; wanted: one. Take it there: make initialised ENV=$(ENV) && TF_DATA_DIR=$(TF_DATA_DIR) $(TF) state push $(ENV_DIR)/terraform.tfstate, then move the file away." >&2; exit 2; }

# Only the file counts, not the command line: whoever wants this has to change what everybody sees.
unprotected: env-known
	@[ "$(PROTECTED) $(origin PROTECTED)" = "no file" ] || { echo "destroy: $(ENV) is protected (PROTECTED is \"$(PROTECTED)\" by $(origin PROTECTED)); wanted: PROTECTED := no in inventories/$(ENV)/env.mk. If its machines really are to go, write that there, commit it, and run this again. Nothing was changed." >&2; exit 2; }

# The steps of plan, provision, fleet and destroy. Each runs once, in the order in which it is named.
.PHONY: initialised planned confirmed applied written
initialised: terraform-there backend-there $(VENV)/ready $(TERRAFORM_RC)
	$(TF) init -input=false -lockfile=readonly -reconfigure -backend-config=$(BACKEND)

# A plan can hold what is nobody's business (user data), so its file is the operator's alone.
planned: env-known variables-there no-other-state initialised
	@$(NEW_PLAN)
	umask 077 && $(TF) plan -input=false $(VAR_FILES) -out=$(PLAN)
	@umask 077 && $(TF) show -json $(PLAN) >$(PLAN).json
	@read -ra allowed <<<"$$ALLOW"; coderack fleet guard "$${allowed[@]/#/--allow=}" $(PLAN).json || { code=$$?; \
		echo "plan: refused, nothing was changed. If what is named above really is to go: make provision ENV=$(ENV) ALLOW='<address> …'" >&2; exit $$code; }

confirmed:
	@$(CONFIRM) $(ENV) $(PLAN).json

# A plan without changes is not applied: that would only raise the state's serial, and with it change the inventory's header.
# The two members together are the plan's own; one alone may also be a value that somebody gave a node.
applied:
	@$(PLAN_THERE)
	@grep -q '"applyable":false,"complete":' $(PLAN).json || { set -x; $(TF) apply -input=false $(PLAN); }
	@rm -f $(PLAN) $(PLAN).json

written: # --from lets the header name the serial and lineage of the state
	coderack fleet write --env $(ENV) --from $(STACK_DIR)

inventory-there:
	@test -f inventories/$(ENV)/hosts.yml || { echo "inventories/$(ENV)/hosts.yml is not there; wanted: the inventory that \`make provision ENV=$(ENV)\` writes. $(if $(filter lab,$(ENV)),Run \`make demo\` (or \`make lab-up\` and then \`make provision host-keys configure\`) first.,Run that first.)" >&2; exit 2; }

$(VENV)/ready: tools/requirements.lock pyproject.toml | host-packages-fast
	@echo 'project environment: installing from tools/requirements.lock (about a minute) ...' >&2
	@$(PYTHON) -m venv --clear $(VENV)
	@$(VENV)/bin/pip install --disable-pip-version-check --no-input -q --require-hashes -r tools/requirements.lock 2>$(BUILD)/pip.log \
		&& $(VENV)/bin/pip install --disable-pip-version-check --no-input -q --no-deps --no-build-isolation -e . 2>>$(BUILD)/pip.log \
		|| { tail -n 15 $(BUILD)/pip.log >&2; echo 'project environment: pip failed; whole log: $(BUILD)/pip.log' >&2; exit 1; }
	@touch $@

$(CHECKOV)/ready: tools/checkov.lock | host-packages-fast
	@echo 'checkov: installing from tools/checkov.lock (about a minute) ...'
	@$(PYTHON) -m venv --clear $(CHECKOV)
	@$(CHECKOV)/bin/pip install --disable-pip-version-check --no-input -q --require-hashes -r tools/checkov.lock 2>$(BUILD)/pip.log \
		|| { tail -n 15 $(BUILD)/pip.log >&2; echo 'checkov: pip failed; whole log: $(BUILD)/pip.log' >&2; exit 1; }
	@touch $@

# Galaxy is not needed: the same collections, at one known version, are in the `ansible` wheel; only these four are unpacked.
$(COLLECTIONS): ansible/collections.lock | $(VENV)/ready
	@echo 'Ansible collections: unpacking from the wheel of ansible/collections.lock ...'
	@rm -rf $(BUILD)/wheels $@ $@.partial && mkdir -p $(BUILD)/wheels $@.partial
	@$(VENV)/bin/pip download --disable-pip-version-check --no-input -q --no-deps --require-hashes -d $(BUILD)/wheels -r ansible/collections.lock 2>$(BUILD)/pip.log \
		|| { tail -n 15 $(BUILD)/pip.log >&2; exit 1; }
	@unzip -q $(BUILD)/wheels/ansible-*.whl 'ansible_collections/ansible/posix/*' 'ansible_collections/ansible/utils/*' \
		'ansible_collections/community/crypto/*' 'ansible_collections/community/general/*' -d $@.partial
	@rm -rf $(BUILD)/wheels && mv $@.partial/ansible_collections $@ && rmdir $@.partial && touch $@

$(BUILD)/terraform.rc:
	@mkdir -p $(BUILD)
	@printf 'provider_installation {\n  filesystem_mirror {\n    path    = "%s"\n    include = ["hashicorp/aws"]\n  }\n  direct {\n    exclude = ["hashicorp/aws"]\n  }\n}\n' '$(TF_MIRROR)' >$@
